"""The simulation engine: data, models, clients, aggregation, and runs on disk.

    from cepam import fl

    settings = fl.preset("private").updated({"run.seed": 3})
    summary = fl.train(settings, Path("runs/mine"))

Your own data and model: `fl.from_arrays`, `fl.from_torch`, `fl.from_clients` or `fl.from_table`, and
`fl.Model(lambda: my_module, loss=…)`, handed to `fl.train` or `fl.Simulation`. Your own scheme:
`fl.Simulation(…, codecs=lambda client: my_codec)`.
"""

from cepam.fl.config.presets import PRESETS, preset
from cepam.fl.config.settings import (
    ClientOverride,
    ClientsSettings,
    CompressionSettings,
    DataSettings,
    ModelSettings,
    PrivacySettings,
    RunSettings,
    Settings,
    TrainingSettings,
)
from cepam.fl.data.catalog import load
from cepam.fl.data.dataset import Dataset, from_arrays, from_clients, from_table, from_torch, synthetic
from cepam.fl.data.fetch import DataUnavailable
from cepam.fl.models.features import Features
from cepam.fl.models.model import Model, build, linear_on
from cepam.fl.runs.comparison import compare
from cepam.fl.runs.progress import Progress
from cepam.fl.runs.sources import prepared
from cepam.fl.runs.trackers import to_mlflow, to_wandb
from cepam.fl.runs.training import read_metrics, train
from cepam.fl.simulation import Simulation

__all__ = [
    "PRESETS",
    "ClientOverride",
    "ClientsSettings",
    "CompressionSettings",
    "DataSettings",
    "DataUnavailable",
    "Dataset",
    "Features",
    "Model",
    "ModelSettings",
    "PrivacySettings",
    "Progress",
    "RunSettings",
    "Settings",
    "Simulation",
    "TrainingSettings",
    "build",
    "compare",
    "from_arrays",
    "from_clients",
    "from_table",
    "from_torch",
    "linear_on",
    "load",
    "prepared",
    "preset",
    "read_metrics",
    "synthetic",
    "to_mlflow",
    "to_wandb",
    "train",
]
