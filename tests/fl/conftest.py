from __future__ import annotations

import pytest

from cepam.fl import Dataset, Settings, settings_from, synthetic


@pytest.fixture(scope="session")
def small() -> Dataset:
    """A few hundred images that need nothing."""
    return synthetic(records=600, tests=200)


@pytest.fixture
def quick() -> Settings:
    """A simulation of a second: 4 clients, 3 rounds."""
    return settings_from(
        {"data": "synthetic", "clients": 4, "rounds": 3, "tau": 3, "noise": 0.02, "batch": 2, "simulate": True}
    )
