"""Speed and rate of a codec on this machine, beside the cost of drawing the noise in the same run.

Machines are noisy: the figure to look at is the ratio. Everything is timed on one thread unless it says otherwise.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata, util
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian, Laplace
from cepam.keys import Address, Key
from cepam.lattices.lattice import E8, Integer

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Timing:
    """Nanoseconds per coordinate, and how many times the noise alone that is."""

    what: str
    coordinates: int
    nanoseconds: float
    ratio: float
    bits_per_coordinate: float | None = None


def best_of(runs: int, work: Callable[[], Any]) -> float:
    """The least wall time in seconds of several runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def noise_alone(x: Vector, sigma: float, runs: int) -> tuple[str, float]:
    """What plain noise addition is called here, and its seconds: PyTorch on one thread if it is there, else NumPy."""
    if util.find_spec("torch"):
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        tensor = torch.from_numpy(x)
        seconds = best_of(runs, lambda: tensor + sigma * torch.randn(len(x)))
        torch.set_num_threads(before)
        return "x + sigma * torch.randn", seconds
    generator = np.random.default_rng(0)
    return "x + sigma * numpy normal", best_of(
        runs, lambda: x + np.float32(sigma) * generator.standard_normal(len(x), dtype=np.float32)
    )


def noise_then_dither(x: Vector, sigma: float, runs: int) -> float:
    """Seconds of a plain NumPy pipeline: add Gaussian noise, then dither, round, and take the dither off again."""
    generator = np.random.default_rng(0)
    step = np.float32(sigma)

    def pipeline() -> Vector:
        noisy = x + np.float32(sigma) * generator.standard_normal(len(x), dtype=np.float32)
        dither = generator.random(len(x), dtype=np.float32)
        result: Vector = np.multiply(np.floor(noisy / step + dither) - dither, step)
        return result

    return best_of(runs, pipeline)


def update_like(m: int, seed: int = 0) -> Vector:
    """A vector that looks like a clipped update: Laplace entries at rms 0.0125."""
    draws: Vector = np.random.default_rng(seed).laplace(scale=0.0125 / np.sqrt(2.0), size=m).astype(np.float32)
    return draws


def time_codec(codec: Codec, x: Vector, noise: float, runs: int, label: str) -> list[Timing]:
    """Encode and decode of one codec against the seconds of the noise alone."""
    at = Address(Key.generate(), round=0, client=0)
    message = codec.encode(x, at)
    codec.decode(message, at)
    encode = best_of(runs, lambda: codec.encode(x, at))
    decode = best_of(runs, lambda: codec.decode(message, at))
    m = len(x)
    return [
        Timing(f"encode, {label}", m, encode / m * 1e9, encode / noise, 8 * len(message) / m),
        Timing(f"decode, {label}", m, decode / m * 1e9, decode / noise),
    ]


def speed_table(m: int, sigma: float = 0.01, runs: int = 3) -> list[Timing]:
    """The speed of the main codecs on m coordinates, one thread, and of two threads against one."""
    x = update_like(m)
    name, noise = noise_alone(x, sigma, runs)
    rows = [Timing(name, m, noise / m * 1e9, 1.0)]
    pipeline = noise_then_dither(x, sigma, runs)
    rows.append(Timing("Gaussian, then dither and round (NumPy)", m, pipeline / m * 1e9, pipeline / noise))
    scalar = Codec(Gaussian(sigma), Integer(1), threads=1)
    rows += time_codec(scalar, x, noise, runs, "Gaussian, n = 1")
    rows += time_codec(replace(scalar, threads=2), x, noise, runs, "Gaussian, n = 1, two threads")
    rows += time_codec(Codec(Laplace(sigma), Integer(1), threads=1), x, noise, runs, "Laplace, n = 1")
    rows += time_codec(Codec(Gaussian(sigma), E8, threads=1), x, noise, runs, "Gaussian, E8")
    return rows


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    versions = {name: metadata.version(name) for name in ("cepam", "numpy", "numba", "scipy")}
    return {"python": platform.python_version(), "processor": _processor(), **versions}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return f"{len(names)} x {names[0]}"
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
