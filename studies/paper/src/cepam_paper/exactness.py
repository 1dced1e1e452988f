"""The quantizer's error: our LRSUQ against its law, and the published decoder against the same tests.

Paper: Section II-B (SDQ, RSUQ, Proposition 4) and Lemma 6: the error follows f and is independent of the input.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian, Laplace
from cepam.keys import Address, Key
from cepam.lattices.lattice import A2, D4, E8, Integer, Lattice
from cepam.verify.certificate import Certificate, verify
from cepam_paper import picture, printed
from cepam_paper.dithering import dithering, dithering_table
from cepam_paper.published import ARITHMETIC, PublishedChannel
from cepam_paper.run_size import Extent, run_size
from cepam_paper.section import Figure, Part, Say, Table

GAUSSIAN, LAPLACE = Gaussian(printed.SIGMA), Laplace(printed.B)
OURS: dict[str, tuple[Gaussian | Laplace, Lattice]] = {
    "gaussian-1": (GAUSSIAN, Integer(1)),
    "gaussian-2": (GAUSSIAN, Integer(2)),
    "gaussian-3": (GAUSSIAN, Integer(3)),
    "gaussian-A2": (GAUSSIAN, A2),
    "gaussian-D4": (GAUSSIAN, D4),
    "gaussian-E8": (GAUSSIAN, E8),
    "laplace-1": (LAPLACE, Integer(1)),
}
PUBLISHED: dict[str, tuple[Gaussian | Laplace, int]] = {
    "gaussian-1": (GAUSSIAN, 1), "gaussian-2": (GAUSSIAN, 2), "gaussian-3": (GAUSSIAN, 3), "laplace-1": (LAPLACE, 1),
}  # fmt: skip
INPUT = 0.05
FALSE_ALARM = 1e-3
SUMMARY = (
    "Our LRSUQ and the arithmetic of the published code under the same battery of tests: the error's law, its radius, "
    "directions and covariance, and its independence of the input, of neighbours and of other addresses, on inputs "
    f"from zero to huge. A correct quantizer fails the battery with chance {FALSE_ALARM:g}."
)


@dataclass(frozen=True)
class PublishedCodec:
    """The published arithmetic dressed as a codec, so that the certificate's tests apply to it.

    The certificate's sub-vectors are neighbours and the program's are strided, so entries are put in its order.
    """

    law: Gaussian | Laplace
    n: int

    @property
    def on(self) -> Lattice:
        return Integer(self.n)

    @property
    def grid(self) -> float:
        """A step finer than any of its outputs: it has no public grid."""
        return self.law.scale * 2.0**-40

    def encode(self, update: npt.ArrayLike, at: Address) -> bytes:
        values = np.asarray(update, dtype=np.float32)
        ordered = values.reshape(-1, self.n).T.ravel()
        return PublishedChannel(self.law, self.n, (values.size,)).encode(ordered, at)

    def decode(self, message: bytes, at: Address) -> npt.NDArray[Any]:
        size = len(message) // 8
        ordered = PublishedChannel(self.law, self.n, (size,)).decode(message, at).astype(np.float64)
        return ordered.reshape(self.n, -1).T.ravel()


def _fixed_key(name: str) -> Key:
    return Key(hashlib.sha256(f"cepam reproduce {name}".encode()).digest())


def run(report: Path, extent: Extent, say: Say) -> Part:
    """The certificates of both."""
    start, samples = time.monotonic(), run_size(extent).samples
    of = len(OURS) + len(PUBLISHED)
    numbers: dict[str, Any] = {"false_alarm": FALSE_ALARM, "samples": samples, "ours": {}, "published": {}}
    for at, (name, (law, lattice)) in enumerate(OURS.items()):
        say(f"LRSUQ, {name}", at, of)
        made = verify(Codec(law, lattice, coder="layered"), samples, FALSE_ALARM, _fixed_key(name))
        numbers["ours"][name] = _found(made) | {"ratio": _ratio(Codec(law, lattice, coder="layered"), samples, 0.0)}
    for at, (name, (law, n)) in enumerate(PUBLISHED.items()):
        say(f"published, {name}", len(OURS) + at, of)
        codec = PublishedCodec(law, n)
        found = _found(verify(codec, samples, FALSE_ALARM, _fixed_key(name)))
        ratios = {"ratio": _ratio(codec, samples, 0.0), "ratio_at_input": _ratio(codec, samples, INPUT)}
        numbers["published"][name] = found | ratios | {"gain": _gain(codec, samples), "input": INPUT}
    numbers |= {**dithering(samples), "arithmetic": ARITHMETIC}
    say("figures", of, of)
    return Part(
        "exactness", "The quantizer's error law", SUMMARY, "cepam reproduce exactness", (), time.monotonic() - start,
        numbers, (_table(numbers), dithering_table(numbers)), (_figure(report, samples),),
    )  # fmt: skip


def _found(made: Certificate) -> dict[str, Any]:
    """Whether it passed, and the least p-values, each times the number of its tests."""
    about = ["independent" in check.about or "same for" in check.about for check in made.checks]
    law = [check.p_value for check, other in zip(made.checks, about) if not other]
    apart = [check.p_value for check, other in zip(made.checks, about) if other]
    return {
        "passed": made.passed,
        "checks": len(made.checks),
        "failures": len(made.failures),
        "p": min(1.0, min(law) * len(law)),
        "independence_p": min(1.0, min(apart) * len(apart)),
    }


def _errors(codec: Any, samples: int, value: float) -> npt.NDArray[np.float64]:
    n = codec.on.dimension
    update = np.full(samples * n, value, dtype=np.float32)
    at = Address(_fixed_key("errors"), round=0, client=0)
    return np.asarray(codec.decode(codec.encode(update, at), at), dtype=np.float64) - update


def _ratio(codec: Any, samples: int, value: float) -> float:
    """The measured deviation of the error over the law's."""
    return float(_errors(codec, samples, value).std() / codec.law.variance() ** 0.5)


def _gain(codec: Any, samples: int) -> float:
    """The mean of the decoded value over a constant input."""
    return 1.0 + float(_errors(codec, 20 * samples, INPUT).mean()) / INPUT


def _table(numbers: dict[str, Any]) -> Table:
    rows = []
    for whose, label in (("ours", "LRSUQ"), ("published", "published code")):
        for name, found in numbers[whose].items():
            gain = f"{found['gain']:.3f}" if "gain" in found else "–"
            far = f"{found['ratio_at_input']:.3f}" if "ratio_at_input" in found else "–"
            verdict = "passed" if found["passed"] else f"failed {found['failures']} of {found['checks']}"
            rows.append((label, name, verdict, f"{found['p']:.2g}", f"{found['ratio']:.3f}", far, gain))
    columns = (
        "quantizer", "law and lattice", "certificate", "least p (corrected)", "error at 0 over the law's",
        f"error at {INPUT:g} over the law's", "mean gain",
    )  # fmt: skip
    return Table("exactness", "The same tests for both", columns, tuple(rows))


def _figure(report: Path, samples: int) -> Figure:
    figure, axes = picture.canvas(2, width=5.0)
    span = np.linspace(-5, 5, 81)
    for axis, value in zip(axes[0], (0.0, INPUT)):
        for place, (codec, label) in enumerate(
            ((Codec(GAUSSIAN, Integer(1), coder="layered"), "LRSUQ"), (PublishedCodec(GAUSSIAN, 1), "published code"))
        ):
            errors = _errors(codec, samples, value) / printed.SIGMA
            axis.hist(errors, span, density=True, histtype="step", label=label, color=picture.COLOURS[4 * place])
        axis.plot(span, np.exp(-(span**2) / 2) / np.sqrt(2 * np.pi), "k--", lw=1, label="N(0, 1)")
        axis.set(title=f"input {value:g}", xlabel="error / sigma", ylabel="density")
    picture.legend_outside(figure, axes[0][0])
    caption = "n = 1, sigma = 0.01. The exact quantizer's error is the same law at every input."
    return picture.kept(report, "exactness", "Error of one coordinate", caption, figure)
