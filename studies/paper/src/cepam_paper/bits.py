"""Bits: real messages of gradients against the paper's formula, by lattice and noise.

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
from cepam.fl.engine.baselines import PlainFloats
from cepam.keys import Address, Key
from cepam.noise.lattices import E8, Integer, Lattice
from cepam.noise.laws import Gaussian
from cepam_paper import picture, printed
from cepam_paper.section import Figure, Part, Say, Table
from cepam_paper.theory.rate import code_bits, rate

Floats = npt.NDArray[np.float32]
LATTICES: dict[str, Lattice] = {"1": Integer(1), "2": Integer(2), "3": Integer(3), "E8": E8}
SIGMAS = (0.001, 0.01, 0.05, 0.2)
ROUNDS = (1, 6, 11, 21)
SUMMARY = (
    "Bits a coordinate of messages that decode, on clipped single-sample gradients of the paper's CNN. The paper's "
    "code (Golomb for H, a fixed length for M) against its formula, as printed and with the expectation that is meant, "
    "and against our coder, which knows that given the shared randomness most symbols are nearly certain."
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
    settings = fl.settings_from({
        **fl.preset("algorithm1"), "scheme": "fl", "noise": None, "rounds": max(rounds), "evaluate_every": max(rounds),
        "simulate": True,
    })  # fmt: skip
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
    """Bits a coordinate of whole sealed messages; the first is decoded to be sure that it can be."""
    messages = [codec.encode(row, _at(number)) for number, row in enumerate(rows)]
    codec.decode(messages[0], _at(0))
    return 8 * sum(map(len, messages)) / rows.size


def run(report: Path, quick: bool, say: Say) -> Part:
    """The rates."""
    start, clients = time.monotonic(), 4 if quick else 30
    of = len(LATTICES) + len(SIGMAS) + 1
    say("gradients of Algorithm 1", 0, of)
    rows = gradients(ROUNDS, clients)
    law = Gaussian(printed.SIGMA)
    numbers: dict[str, Any] = {
        "sigma": printed.SIGMA, "coordinates": rows.shape[1], "messages": len(rows), "paper_code": {}, "formula": {},
        "adaptive": {},
    }  # fmt: skip
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
        numbers["adaptive"][name] = _whole(Codec(law, lattice), rows)
    numbers["by_sigma"] = []
    for at, sigma in enumerate(SIGMAS):
        say(f"sigma {sigma:g}", 1 + len(LATTICES) + at, of)
        numbers["by_sigma"].append([sigma, _whole(Codec(Gaussian(sigma), Integer(1)), rows)])
    numbers["times_smaller"] = [32 / paid for _, paid in numbers["by_sigma"]]
    return Part(
        "rate", "Bits a coordinate", SUMMARY, "cepam reproduce rate", (1,), time.monotonic() - start, numbers,
        (_by_lattice(numbers), _by_sigma(numbers)), (_figure(report, numbers),),
        ("Payload without header and seal for the paper's code and formula; whole sealed messages for our coder.",),
    )  # fmt: skip


def _by_lattice(numbers: dict[str, Any]) -> Table:
    rows = []
    for name in LATTICES:
        formula = numbers["formula"][name]
        cells = (formula["printed"], formula["repaired"], numbers["paper_code"][name], numbers["adaptive"][name])
        label = f"Z^{name}" if name.isdigit() else name
        rows.append((label, *(f"{value:.3f}" for value in cells)))
    columns = ("lattice", "formula as printed", "formula as meant", "the paper's code", "our coder, whole messages")
    return Table("rate-lattice", f"sigma = {numbers['sigma']:g}, bits a coordinate", columns, tuple(rows))


def _by_sigma(numbers: dict[str, Any]) -> Table:
    pairs = zip(numbers["by_sigma"], numbers["times_smaller"])
    rows = tuple((f"{sigma:g}", f"{paid:.3f}", f"{times:.1f}") for (sigma, paid), times in pairs)
    return Table("rate-sigma", "Our coder, n = 1", ("sigma", "bits a coordinate", "times smaller than float32"), rows)


def _figure(report: Path, numbers: dict[str, Any]) -> Figure:
    figure, axes = picture.canvas(1, width=6.0)
    axis, spots = axes[0][0], np.arange(len(LATTICES))
    for place, (label, values) in enumerate((
        ("formula as meant", [numbers["formula"][name]["repaired"] for name in LATTICES]),
        ("the paper's code", list(numbers["paper_code"].values())),
        ("our coder, whole messages", list(numbers["adaptive"].values())),
    )):  # fmt: skip
        bars = axis.bar(spots + 0.27 * (place - 1), values, 0.25, label=label, color=picture.COLOURS[2 * place])
        axis.bar_label(bars, fmt="%.2f", fontsize=7)
    axis.set_xticks(spots, [f"Z^{name}" if name.isdigit() else name for name in LATTICES])
    axis.set(ylabel="bits a coordinate")
    axis.legend(fontsize=8)
    caption = f"Gradients of the paper's CNN at sigma = {numbers['sigma']:g}; float32 is 32."
    return picture.kept(report, "rate", "Bits a coordinate by lattice", caption, figure)
