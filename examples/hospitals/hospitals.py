"""Eight hospitals, local DP-SGD, one epsilon for outsiders and server: see README.md."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cepam import fl

SITES = {"A": 500, "B": 1000, "C": 2000, "D": 3000, "E": 5000, "F": 8000, "G": 12_000, "H": 20_000}


def load(share: float, seed: int = 0) -> fl.Dataset:
    """Made-up records of every site, twenty numbers each, ill or not; sites differ in how old their patients are."""
    draw = np.random.default_rng(seed)
    weights = draw.normal(size=20)

    def records(count: int, age: float) -> tuple[Any, Any]:
        x = draw.normal(size=(count, 20)).astype(np.float32)
        x[:, 0] += age
        return x, (x @ weights + draw.logistic(size=count) > 0).astype(int)

    sites = {f"hospital {name}": records(int(share * many), draw.normal()) for name, many in SITES.items()}
    return fl.from_clients(sites, test=records(5000, 0.0))


def main() -> None:
    """Trains, and prints what each site was promised and has spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--share", type=float, default=1.0, help="of the records, at least 0.13")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument(
        "--more-noise", type=float, default=None, help="of cepam's noise on uploads, in units of the weights"
    )
    parser.add_argument("--runs", type=Path, default=None, help="where the run is kept")
    given = parser.parse_args()
    noisy = given.more_noise is not None
    settings = fl.Settings.of(
        {
            "training.update": "dp-sgd",
            "training.record_sampling": "poisson",
            "training.batch_size": 64,
            "training.local_epochs": 5,
            "training.rounds": given.rounds,
            "privacy.clipping_norm": 1.0,
            "training.server_learning_rate": 1.0,
            "training.local_learning_rate": 0.05,
            "privacy.epsilon": given.epsilon,
            "privacy.delta": 1e-6,
            "privacy.adjacency": "add-remove",
            "compression.scheme": "cepam-gaussian" if noisy else "fl+sdq",
            "privacy.noise_scale": given.more_noise,
            "compression.sdq_step": 0.01,
            "model.name": "linear",
            "run.evaluate_every": given.rounds,
            "run.checkpoint_every": given.rounds,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        summary = fl.train(settings, (given.runs or Path(folder)) / "hospitals", load(given.share))
    for row in summary["clients"]:
        print(
            f"{row['name']}: {row['records']:,} records, noise multiplier {row['noise_multiplier']:.3f}, "
            f"epsilon {row['epsilon']:.4f} of {row['target_epsilon']:g} at delta {row['delta']:g}"
        )
    for who, spent in summary["epsilon_against"].items():
        print(f"epsilon against {who}: {spent:.4f}")
    print(f"test accuracy {100 * summary['accuracy']:.1f} %")
    print(f"{summary['uplink_bytes']:,} bytes up, {summary['downlink_bytes']:,} down, {summary['seconds']:.0f} s")


if __name__ == "__main__":
    main()
