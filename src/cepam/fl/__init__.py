"""The federated engine: data, models as vectors, the two halves of a round, the simulator, and runs on disk.

    from cepam import fl

    settings = fl.settings_from({**fl.preset("private"), "seed": 3})
    summary = fl.train(settings, Path("runs/mine"))

Your own data and model: `fl.from_arrays` or `fl.from_torch`, and `fl.Model(lambda: my_module)`, handed to `fl.train` or
`fl.Simulation`. Your own scheme: `fl.Simulation(…, channels=lambda client: my_codec)`.
"""

from __future__ import annotations

from cepam.fl.comparison import compare
from cepam.fl.data import Dataset, from_arrays, from_torch, load, synthetic
from cepam.fl.fetch import DataUnavailable
from cepam.fl.model import Model, build, linear_on
from cepam.fl.models.features import Features
from cepam.fl.presets import PRESETS, preset
from cepam.fl.runs import Progress, prepared, read_metrics, train
from cepam.fl.settings import ClientSettings, Settings
from cepam.fl.simulation import Simulation
from cepam.fl.toml import settings_from

__all__ = [
    "PRESETS",
    "ClientSettings",
    "DataUnavailable",
    "Dataset",
    "Features",
    "Model",
    "Progress",
    "Settings",
    "Simulation",
    "build",
    "compare",
    "from_arrays",
    "from_torch",
    "linear_on",
    "load",
    "prepared",
    "preset",
    "read_metrics",
    "settings_from",
    "synthetic",
    "train",
]
