"""Section II measured: SDQ's error, the chance that RSUQ accepts, and SDQ as the RSUQ that accepts everything.

Paper: Definitions 2 and 3 and the footnote between them.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from cepam.codec.quantizers import RSUQ, SDQ
from cepam.keys import Address, Key
from cepam.lattices.lattice import A2, E8, Integer, Lattice
from cepam_paper.section import Table

Floats = npt.NDArray[np.float64]
STEP = 0.01
LATTICES: dict[str, Lattice] = {"Z1": Integer(1), "A2": A2, "E8": E8}
SPANS = (0.0, 1.0, 100.0)
"""Inputs are uniform on this many steps around 0."""


def _at(name: str) -> Address:
    return Address(Key(hashlib.sha256(f"cepam reproduce dithering {name}".encode()).digest()), round=0, client=0)


def dithering(samples: int) -> dict[str, Any]:
    """The three measurements."""
    return {
        "dithered": {name: _dithered(name, lattice, samples) for name, lattice in LATTICES.items()},
        "acceptance": {name: _acceptance(name, lattice, samples) for name, lattice in (("Z2", Integer(2)), ("A2", A2))},
        "special_case": _special_case(samples),
    }


def _dithered(name: str, lattice: Lattice, samples: int) -> dict[str, float]:
    """Least p-values, times the number of tests: the error's coordinates modulo the lattice, and with the input.

    An error is uniform on the cell exactly if its coordinates in the lattice's basis are uniform modulo 1, whatever the
    cell, and it lies in the cell, which rounding to the nearest point sees to.
    """
    n, quantizer = lattice.dimension, SDQ(STEP, lattice)
    unscaled = np.linalg.inv(lattice.basis.astype(np.float64))
    side = STEP / abs(float(np.linalg.det(lattice.basis.astype(np.float64)))) ** (1 / n)
    uniform, apart = [], []
    for span in SPANS:
        x = np.random.default_rng(3).uniform(-span * STEP, span * STEP, samples // n * n)
        error = (
            quantizer.reconstruct(quantizer.quantize(x, _at(f"{name} {span}")), _at(f"{name} {span}")) - x
        ).reshape(-1, n)
        shares = (error / side) @ unscaled.T % 1.0
        uniform += [float(stats.kstest(shares[:, i], "uniform").pvalue) for i in range(n)]
        if span:
            rows = x.reshape(-1, n)
            apart += [float(stats.spearmanr(rows[:, i], shares[:, i]).pvalue) for i in range(n)]
            apart += [float(stats.spearmanr(np.abs(rows[:, i]), np.abs(error[:, i])).pvalue) for i in range(n)]
    return {"uniform_p": min(1.0, min(uniform) * len(uniform)), "independent_p": min(1.0, min(apart) * len(apart))}


def _acceptance(name: str, lattice: Lattice, samples: int) -> dict[str, float]:
    """The share of first trials that a ball inside the cell accepts, against the ratio of volumes."""
    n = lattice.dimension
    side = STEP / abs(float(np.linalg.det(lattice.basis.astype(np.float64)))) ** (1 / n)
    radius = 0.8 * side * lattice.ball_radius("l2")
    ball = math.pi ** (n / 2) / math.gamma(n / 2 + 1) * radius**n
    quantizer = RSUQ(STEP, lambda error: np.square(error).sum(axis=1) <= radius**2, lattice)
    x = np.random.default_rng(4).normal(scale=5 * STEP, size=samples // n * n)
    h, _ = quantizer.quantize(x, _at(name))
    # Every trial but the last of a sub-vector was refused, so accepted over tried is the estimate of the chance.
    chance, measured = ball / STEP**n, len(h) / float(h.sum())
    error = chance * math.sqrt((1 - chance) / len(h))
    return {"volumes": chance, "measured": measured, "z": (measured - chance) / error}


def _special_case(samples: int) -> dict[str, int]:
    """How many decoded values of an RSUQ that accepts everything are SDQ's."""
    x = np.random.default_rng(5).normal(scale=5 * STEP, size=samples // 8 * 8)
    plain, all_of_it = SDQ(STEP, E8), RSUQ(STEP, lambda error: np.ones(len(error), dtype=np.bool_), E8)
    h, m = all_of_it.quantize(x, _at("special"))
    one = all_of_it.reconstruct(h, m, _at("special"))
    other = plain.reconstruct(plain.quantize(x, _at("special")), _at("special"))
    return {"equal": int((one == other).sum()) if (h == 1).all() else 0, "of": len(x)}


def dithering_table(numbers: dict[str, Any]) -> Table:
    """The measurements as a table."""
    rows = [
        (f"SDQ on {name}: error uniform on the cell; independent of the input",
         f"{found['uniform_p']:.3f}; {found['independent_p']:.3f}", "least p-values, corrected")
        for name, found in numbers["dithered"].items()
    ] + [
        (f"RSUQ on {name} with a ball of 0.8 of the inner radius: chance of acceptance", f"{found['measured']:.4f}",
         f"{found['volumes']:.4f} by the volumes, {found['z']:+.2f} standard errors")
        for name, found in numbers["acceptance"].items()
    ]  # fmt: skip
    whole = numbers["special_case"]
    rows.append(
        ("RSUQ on E8 that accepts every error: values equal to SDQ's", f"{whole['equal']:,}", f"of {whole['of']:,}")
    )
    return Table(
        "dithering", "Section II: the quantizers underneath", ("statement", "measured", "beside it"), tuple(rows)
    )
