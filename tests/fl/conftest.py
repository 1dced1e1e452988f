from __future__ import annotations

import pytest

from cepam.fl import Dataset, Settings, synthetic


@pytest.fixture(scope="session")
def small() -> Dataset:
    """A few hundred images that need nothing."""
    return synthetic(records=600, tests=200)


@pytest.fixture
def quick() -> Settings:
    """A simulation of a second: 4 clients, 3 rounds."""
    return Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 4,
            "training.rounds": 3,
            "training.local_steps": 3,
            "privacy.noise_scale": 0.02,
            "training.batch_size": 2,
            "run.simulate": True,
        }
    )
