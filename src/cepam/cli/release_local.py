"""The release of local DP-SGD from the command line's options, and numbers that options list."""

from __future__ import annotations

from typing import Any

from cepam.clip import CLIPS, Adjacency
from cepam.privacy import LocalRelease


def local_release(options: Any, default_noise: float | None) -> LocalRelease:
    """The release of local DP-SGD: every step of every client drawn, clipped and noised by itself."""
    if options.batch or options.unit == "client" or options.noise == "matrix" or options.colluders:
        raise ValueError(
            "--epochs goes with --draws (a local step's batch), and not with --batch, --unit or --colluders"
        )
    if options.law != "gaussian" or options.sampling not in (None, "poisson"):
        raise ValueError("--epochs goes with Gaussian noise and poisson draws")
    if not options.draws:
        raise ValueError("--draws is needed: the records that a local step draws, in expectation")
    if not (options.noise_multiplier or options.sigma or default_noise):
        raise ValueError("--noise-multiplier is needed (a step's noise, in clips over the batch), or --sigma")
    total = options.records_total / options.clients if options.records_total else None
    adjacency: Adjacency = "replace" if options.adjacency == "replace" else "add-remove"
    sigma = values_of("sigma", options.sigma, options.clients) if options.sigma else None
    made = LocalRelease.of(
        [int(many) for many in values_of("records", options.records, options.clients, total)],
        CLIPS[options.clip_norm](options.clip),
        options.noise_multiplier or default_noise or 1.0, options.draws, options.epochs, rounds=options.rounds,
        adjacency=adjacency, coordinates=options.coordinates or None,
    )  # fmt: skip
    return made if sigma is None else made.with_noise(sigma)


def values_of(name: str, text: str, count: int, default: float | None = None) -> list[float]:
    """One number for each client, from 'x' or 'x,y,…'."""
    if not text:
        if default is None:
            raise ValueError(f"--{name} is needed")
        return [default] * count
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{name} must be a number or a comma-separated list, got {text!r}") from None
    if len(numbers) not in (1, count):
        raise ValueError(f"--{name} must give 1 or {count} values, got {len(numbers)}")
    return numbers * count if len(numbers) == 1 else numbers
