"""Bits: real messages of gradients against the paper's formula, by dimension, lattice and noise.

Paper: Section IV-B. The gradients are those of the paper's CNN in Algorithm 1, clipped at 1.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam import fl
from cepam.codec.codec import Codec
from cepam.codec.quantizers import LRSUQ
from cepam.distributions.laws import Gaussian
from cepam.fl.clients.sending import PlainFloats
from cepam.kernels.format.golomb import golomb_parameter
from cepam.kernels.numpy.paper_coder import golomb_fields
from cepam.keys import Address, Key
from cepam.lattices.lattice import E8, Integer, Lattice
from cepam_paper import picture, printed
from cepam_paper.run_size import Extent
from cepam_paper.section import Figure, Part, Say, Table
from cepam_paper.theory.rate import code_bits, golomb_length, paper_point_bits, rate, trial_entropy

Floats = npt.NDArray[np.float32]
LATTICES: dict[str, Lattice] = {"1": Integer(1), "2": Integer(2), "3": Integer(3), "E8": E8}
NODES = 2000
SIGMAS = (0.001, 0.01, 0.05, 0.2)
ROUNDS = (1, 6, 11, 21)
SUMMARY = (
    "Bits per coordinate on clipped single-sample gradients of the paper's CNN. The paper bounds a fixed length for "
    "$M$ within the set $\\mathcal{M}(U)$ of points that can be reached, and its text sends $(H, M)$ with entropy "
    "coding: both are here. The paper's formula is Golomb for $H$ and that fixed length, on its own cell "
    "$(-1/2, 1/2]^n$. Entropy coding is our coder `layered`, which knows that given the shared randomness most "
    "symbols are nearly certain. "
    'Real messages of `coder="paper"` number a box of points around $\\mathcal{M}(U)$ on the cell $[0, 1)^n$.'
)


@dataclass
class Recorder:
    """A channel that keeps the updates it is given."""

    inner: PlainFloats = field(default_factory=PlainFloats)
    kept: list[tuple[int, int, Floats]] = field(default_factory=list)

    def encode(self, update: Floats, at: Address) -> bytes:
        self.kept.append((at.round, at.client, update.copy()))
        return self.inner.encode(update, at)

    def decode(self, message: bytes, at: Address) -> Floats:
        return self.inner.decode(message, at)


def gradients(rounds: tuple[int, ...], clients: int) -> Floats:
    """Clipped gradients of the first clients at these rounds of Algorithm 1 without noise, one a row."""
    settings = fl.preset("algorithm1").updated(
        {
            "compression.scheme": "fl",
            "privacy.noise_scale": None,
            "training.rounds": max(rounds),
            "run.evaluate_every": max(rounds),
            "run.simulate": True,
        }
    )
    recorder = Recorder()
    simulation = fl.Simulation(settings, fl.prepared(settings), codecs=lambda client: recorder)
    while not simulation.done:
        simulation.step()
    rows = sorted(((at, who, row) for at, who, row in recorder.kept if at + 1 in rounds and who < clients),
                  key=lambda each: each[:2])  # fmt: skip
    return np.stack([row for _, _, row in rows])


def _at(number: int) -> Address:
    return Address(Key(hashlib.sha256(b"cepam reproduce rate").digest()), round=number, client=0)


def _whole(codec: Codec, rows: Floats) -> float:
    """Bits per coordinate of whole sealed messages; the first is decoded to be sure that it can be."""
    messages = [codec.encode(row, _at(number)) for number, row in enumerate(rows)]
    codec.decode(messages[0], _at(0))
    return 8 * sum(map(len, messages)) / rows.size


def _own(rows: Floats, n: int) -> dict[str, float]:
    """Bits per coordinate of the paper's formula: Golomb's length of each real H, and a fixed length for M within M(U).

    Which points M(U) holds depends on U alone, so their number is averaged over U; H comes from quantized gradients.
    """
    law, lattice = Gaussian(printed.SIGMA), Integer(n)
    share = lattice.acceptance("l2")
    h = np.concatenate([LRSUQ(law, lattice).quantize(row, _at(number))[0] for number, row in enumerate(rows)])
    ones, _, width = golomb_fields(h, golomb_parameter(share))
    points = paper_point_bits(law, n, 1.0, NODES)
    return {
        "spent": (float((ones + 1 + width).mean()) + points) / n,
        "formula": (trial_entropy(share) + points) / n,
        "printed": trial_entropy(share) / n,
    }


def _own_by_sigma(sigma: float) -> dict[str, float]:
    """The expected bits per coordinate of the paper's formula, for n = 1, 2, 3."""
    return {
        f"{n}": (golomb_length(Integer(n).acceptance("l2")) + paper_point_bits(Gaussian(sigma), n, 1.0, NODES)) / n
        for n in (1, 2, 3)
    }


def run(report: Path, extent: Extent, say: Say) -> Part:
    """The rates."""
    start, clients = time.monotonic(), 30 if extent is Extent.FULL else 4
    of = len(LATTICES) + 2 * len(SIGMAS) + 1
    say("gradients of Algorithm 1", 0, of)
    rows = gradients(ROUNDS, clients)
    law = Gaussian(printed.SIGMA)
    numbers: dict[str, Any] = {
        "sigma": printed.SIGMA, "coordinates": rows.shape[1], "messages": len(rows), "paper_code": {}, "formula": {},
        "adaptive": {}, "own_by_sigma": {}, "adaptive_by_sigma": {},
    }  # fmt: skip
    numbers["own_code"] = {f"{n}": _own(rows[:: max(1, len(rows) // 24)], n) for n in (1, 2, 3)}
    for at, (name, lattice) in enumerate(LATTICES.items()):
        say(f"lattice {name}", 1 + at, of)
        old = Codec(law, lattice, coder="paper", bound=1.0)
        some = rows[:: max(1, len(rows) // 24)]
        paid = [code_bits(old, row.astype(np.float64), _at(number)) for number, row in enumerate(some)]
        numbers["paper_code"][name] = sum(paid) / some.size
        stated = rate(law, lattice, 1.0, rows.shape[1])
        numbers["formula"][name] = {
            "printed": stated.printed / rows.shape[1], "repaired": stated.spent / rows.shape[1],
            "ideal": stated.repaired / rows.shape[1],
        }  # fmt: skip
        numbers["adaptive"][name] = _whole(Codec(law, lattice, coder="layered"), rows)
    for at, sigma in enumerate(SIGMAS):
        say(f"the formula at sigma {sigma:g}", 1 + len(LATTICES) + 2 * at, of)
        numbers["own_by_sigma"][f"{sigma:g}"] = _own_by_sigma(sigma)
        say(f"messages at sigma {sigma:g}", 2 + len(LATTICES) + 2 * at, of)
        whole = {f"{n}": _whole(Codec(Gaussian(sigma), Integer(n), coder="layered"), rows) for n in (1, 2, 3)}
        numbers["adaptive_by_sigma"][f"{sigma:g}"] = whole
    numbers["by_sigma"] = [[sigma, numbers["adaptive_by_sigma"][f"{sigma:g}"]["1"]] for sigma in SIGMAS]
    numbers["times_smaller"] = [32 / paid for _, paid in numbers["by_sigma"]]
    return Part(
        "rate", "Bits per coordinate", SUMMARY, "cepam reproduce rate", (1,), time.monotonic() - start, numbers,
        (_by_lattice(numbers), _by_dimension(numbers), _by_sigma(numbers)), (draw(report, numbers),),
        ("Payload without header and seal but for entropy coding, which has whole sealed messages.",),
    )  # fmt: skip


def _by_lattice(numbers: dict[str, Any]) -> Table:
    rows = []
    for name in LATTICES:
        formula, own = numbers["formula"][name], numbers["own_code"].get(name)
        cells = (own["formula"], own["spent"]) if own else (None, None)
        cells = (formula["printed"], *cells, numbers["paper_code"][name], numbers["adaptive"][name])
        label = f"$Z^{name}$" if name.isdigit() else name
        rows.append((label, *("–" if value is None else f"{value:.3f}" for value in cells)))
    columns = (
        "lattice", "formula as printed", "formula with $E\\lceil\\log_2|\\mathcal{M}(U)|\\rceil$",
        "the same with Golomb's code for $H$", "a box around it, real messages", "entropy coded, whole messages",
    )  # fmt: skip
    return Table("rate-lattice", f"$\\sigma = {numbers['sigma']:g}$, bits per coordinate", columns, tuple(rows))


def _by_dimension(numbers: dict[str, Any]) -> Table:
    kinds = {"own_by_sigma": "the paper's formula, fixed length", "adaptive_by_sigma": "entropy coded, whole messages"}
    rows = tuple(
        (f"{sigma}, {kind}", *(f"{found[n]:.3f}" for n in ("1", "2", "3")))
        for key, kind in kinds.items()
        for sigma, found in numbers[key].items()
    )
    caption = (
        "The formula: Golomb for $H$ and a fixed length for $M$ within $\\mathcal{M}(U)$, cell $(-1/2, 1/2]^n$, in "
        "expectation over $U$. Entropy coded: sealed messages of our coder on the gradients."
    )
    columns = ("$\\sigma$", "$n = 1$", "$n = 2$", "$n = 3$")
    return Table("rate-dimension", "Bits per coordinate by dimension", columns, rows, caption)


def _by_sigma(numbers: dict[str, Any]) -> Table:
    pairs = zip(numbers["by_sigma"], numbers["times_smaller"])
    rows = tuple((f"{sigma:g}", f"{paid:.3f}", f"{times:.1f}") for (sigma, paid), times in pairs)
    columns = ("$\\sigma$", "bits per coordinate", "times smaller than float32")
    return Table("rate-sigma", "Coder `layered`, $n = 1$", columns, rows)


def draw(report: Path, numbers: dict[str, Any]) -> Figure:
    """The rates by lattice as bars."""
    figure, axes = picture.canvas(1, width=7.0)
    axis, spots = axes[0][0], np.arange(len(LATTICES))
    own = [numbers.get("own_code", {}).get(name, {}).get("spent", np.nan) for name in LATTICES]
    for place, (label, values) in enumerate((
        ("the paper's formula, fixed length", own),
        ("a box of points, real messages", list(numbers["paper_code"].values())),
        ("entropy coded, whole messages", list(numbers["adaptive"].values())),
    )):  # fmt: skip
        bars = axis.bar(spots + 0.27 * (place - 1), values, 0.25, label=label, color=picture.COLOURS[2 * place])
        axis.bar_label(bars, ["" if np.isnan(value) else f"{value:.2f}" for value in values], fontsize=7)
    axis.set_xticks(spots, [f"Z^{name}" if name.isdigit() else name for name in LATTICES])
    axis.set(ylabel="bits per coordinate")
    picture.legend_outside(figure, axis)
    caption = (
        f"Gradients of the paper's CNN at $\\sigma = {numbers['sigma']:g}$; float32 is 32. On E8 M(U) is not counted."
    )
    return picture.kept(report, "rate", "Bits per coordinate by lattice", caption, figure)
