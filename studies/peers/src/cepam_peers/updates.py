"""Private and small updates by other means, on one preset: the same data, model, clipping, noise, epsilon and rounds.

    python -m cepam_peers.updates --preset hospitals --seeds 5      rows that studies/peers/results/updates.json lacks
    python -m cepam_peers.updates --table                              nothing runs: one Markdown table

Every rival adds the Gaussian noise that the accountant asks of its client for the preset's epsilon, then compresses
what it sends. A message of one client is post-processing of that client's noisy update. A sum of separately compressed
updates is no post-processing of the noisy sum, so the epsilon of the sum is unproven: the noise of one client alone is
what protects. `central` is DP-SGD by one party that holds all records (what Opacus computes), the ceiling. The other
rivals are code of the user's own, which reports no epsilon. Lines are those of the user's code, without
docstrings and comments. Simulations, paired by seed; bytes are per client and round, header and seal included where a
scheme has one; rivals' messages here have none, in their favour.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam import fl
from cepam.codec.vectors import UpdateCodec
from cepam.distributions.laws import Law
from cepam.fl.clients.baselines import NoisyDithered, draw_noise
from cepam.fl.runs.summary import interval
from cepam.keys import Address
from cepam.secure_aggregation import Sketch

RESULTS = Path("studies/peers/results/updates.json")
Vector = npt.NDArray[np.float32]


def public_draw(at: Address) -> np.random.Generator:
    """Randomness that both ends share, anew for every message."""
    words = np.frombuffer(hashlib.sha256(b"rival" + at.derive().noise).digest(), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words[:2]))


@dataclass(frozen=True)
class NoiseThenQsgd:
    """Noise, then stochastic rounding to `bits` bits between plus and minus the largest coordinate (Alistarh 2017)."""

    law: Law
    size: int
    bits: int = 8

    def encode(self, update: Vector, at: Address) -> bytes:
        """The largest coordinate, then the levels."""
        noisy = np.asarray(update) + draw_noise(self.law, len(update), at)
        largest, top = np.float32(np.abs(noisy).max()), 2**self.bits - 1
        places = (noisy / max(largest, np.float32(1e-30)) + 1.0) * (top / 2.0)
        levels = np.clip(np.floor(places + public_draw(at).random(len(noisy))), 0, top).astype(np.uint8)
        packed = np.unpackbits(levels[:, None], axis=1)[:, 8 - self.bits :]
        return largest.tobytes() + np.packbits(packed).tobytes()

    def decode(self, message: bytes, at: Address) -> Vector:
        """What the levels stand for."""
        largest, top = np.frombuffer(message[:4], np.float32)[0], 2**self.bits - 1
        flat = np.unpackbits(np.frombuffer(message[4:], np.uint8))[: self.size * self.bits].reshape(-1, self.bits)
        levels = flat @ (1 << np.arange(self.bits - 1, -1, -1))
        return np.asarray((levels / (top / 2.0) - 1.0) * largest, dtype=np.float32)


@dataclass(frozen=True)
class NoiseThenSign:
    """Noise, then the sign of every coordinate and their mean magnitude (Bernstein 2018, scaled)."""

    law: Law
    size: int

    def encode(self, update: Vector, at: Address) -> bytes:
        """The mean magnitude, then one bit per coordinate."""
        noisy = np.asarray(update) + draw_noise(self.law, len(update), at)
        return np.float32(np.abs(noisy).mean()).tobytes() + np.packbits(noisy > 0).tobytes()

    def decode(self, message: bytes, at: Address) -> Vector:
        """The signs times the magnitude."""
        signs = np.unpackbits(np.frombuffer(message[4:], np.uint8))[: self.size]
        return np.asarray((2.0 * signs - 1.0) * np.frombuffer(message[:4], np.float32)[0], dtype=np.float32)


@dataclass(frozen=True)
class SketchThenNoise:
    """A public sketch to a part of the coordinates, noise, then subtractively dithered quantization."""

    law: Law
    size: int
    part: int = 2

    def _sketch(self, at: Address) -> Sketch:
        seed = hashlib.sha256(b"public sketch" + at.round.to_bytes(8, "big")).digest()
        return Sketch(self.size, max(1, self.size // self.part), seed)

    def encode(self, update: Vector, at: Address) -> bytes:
        """The message of the noisy sketch."""
        made = self._sketch(at).apply(np.asarray(update, dtype=np.float64))
        return NoisyDithered(self.law, self.law.scale).encode(np.asarray(made, dtype=np.float32), at)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The server's unbiased estimate."""
        made = NoisyDithered(self.law, self.law.scale).decode(message, at)
        return np.asarray(self._sketch(at).restore(np.asarray(made, dtype=np.float64)), dtype=np.float32)


Rival = Callable[[Law, int], UpdateCodec]
FLOATS = {"compression.scheme": "fl+gaussian", "compression.downlink": "float32"}
ROWS: dict[str, tuple[str, dict[str, Any], Rival | None, tuple[Any, ...]]] = {
    "cepam": ("cepam", {}, None, ()),
    "float32": ("float32 DP-FedAvg", FLOATS, None, ()),
    "central": ("central DP-SGD, float32", FLOATS, None, ()),
    "qsgd-8": ("noise, then QSGD, 8 bits", FLOATS, lambda law, m: NoiseThenQsgd(law, m, 8), (NoiseThenQsgd,)),
    "qsgd-4": ("noise, then QSGD, 4 bits", FLOATS, lambda law, m: NoiseThenQsgd(law, m, 4), (NoiseThenQsgd,)),
    "sdq": ("noise, then SDQ, step sigma", FLOATS, lambda law, m: NoisyDithered(law, law.scale), (NoisyDithered,)),
    "sign": ("noise, then sign", FLOATS, NoiseThenSign, (NoiseThenSign,)),
    "sketch": ("public sketch to a half, noise, SDQ", FLOATS, SketchThenNoise, (SketchThenNoise,)),
}
PROVED = ("cepam", "float32", "central")


def lines_of(kinds: tuple[Any, ...]) -> int:
    """Lines of code of these classes, without docstrings, comments and empty lines."""
    total = 0
    for kind in kinds:
        tree = ast.parse(inspect.getsource(kind))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        total += len(ast.unparse(tree).splitlines())
    return total


def pooled(data: fl.Dataset) -> fl.Dataset:
    """The same records, held by one party."""
    return replace(data, clients=("all",), owners=np.zeros(data.records, dtype=np.int64))


def run(name: str, preset: str, seeds: int, data: fl.Dataset) -> dict[str, Any]:
    """The figures of one row."""
    told, changes, rival, kinds = ROWS[name]
    settings = fl.preset(preset).updated(
        {**changes, "run.simulate": True, "run.seeds": seeds, "run.evaluate_every": fl.preset(preset).training.rounds}
    )
    held = pooled(data) if name == "central" else data
    codecs = None
    if rival is not None:
        first = fl.Simulation(settings.updated({"run.seeds": 1}), held)
        laws = [plan.law for plan in first.aggregators[0].plans if plan.law is not None]
        made = {law: rival(law, first.size) for law in set(laws)}
        codecs = lambda k: made[laws[k]]  # noqa: E731
    begun = time.perf_counter()
    simulation = fl.Simulation(settings, held, codecs=codecs)
    up = down = 0
    lines: list[dict[str, Any]] = []
    while not simulation.done:
        lines = simulation.step()
        up += sum(line["bits"] for line in lines)
        down += sum(line["downlink_bits"] for line in lines)
    judged = "auc" if "auc" in lines[0] else "accuracy"
    score, half = interval([line[judged] for line in lines])
    messages = settings.training.rounds * simulation.settings.clients.count * seeds
    return {
        "preset": preset, "row": name, "what": told, "judge": judged, "score": score, "half_width": half,
        "proved_epsilon": max(line["epsilon"] for line in lines) if name in PROVED else None,
        "reported_epsilon": max(line["epsilon"] for line in lines) if name in PROVED else None,
        "delta": settings.privacy.delta, "bytes_up": up / 8 / messages, "bytes_down": down / 8 / messages,
        "seconds": (time.perf_counter() - begun) / seeds, "lines": 1 + lines_of(kinds), "seeds": seeds,
        "rounds": settings.training.rounds, "weights": simulation.size,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared",
        "command": f"python -m cepam_peers.updates --preset {preset} --seeds {seeds} --rows {name}",
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """One Markdown table."""
    made = ["| task | tool | score | proved epsilon | it reports | bytes up / down | seconds | lines |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        score, half = row["score"], row["half_width"] or 0.0
        told = f"{score:.3f} ± {half:.3f}" if row["judge"] == "auc" else f"{100 * score:.2f} ± {100 * half:.2f} %"
        proved = f"{row['proved_epsilon']:.3g}" if row["proved_epsilon"] is not None else "unproven"
        reports = f"{row['reported_epsilon']:.3g}" if row["reported_epsilon"] is not None else "nothing"
        made.append(f"| `{row['preset']}` | {row['what']} | {told} | {proved} | {reports} | {row['bytes_up']:,.0f} / "
                    f"{row['bytes_down']:,.0f} | {row['seconds']:.1f} | {row['lines']} |")  # fmt: skip
    return "\n".join(made)


def main() -> None:
    """Run the rows that are missing, keep them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="hospitals")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
    kept = {(row["preset"], row["row"]) for row in rows}
    wanted = [] if chosen.table else [name for name in chosen.rows if (chosen.preset, name) not in kept]
    data = fl.prepared(fl.preset(chosen.preset)) if wanted else None
    for name in wanted:
        assert data is not None
        rows.append(run(name, chosen.preset, chosen.seeds, data))
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
