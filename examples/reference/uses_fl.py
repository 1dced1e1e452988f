"""Every public name of `cepam.fl` at work: training in simulation."""

import numpy as np
import torch

from cepam import fl

data: fl.Dataset = fl.synthetic(records=200, tests=50, classes=3, side=8)
same = fl.load("synthetic")  # or "mnist": DataUnavailable where nothing can be fetched
assert issubclass(fl.DataUnavailable, Exception)
x, y = np.ones((40, 6), np.float32), np.arange(40) % 2
pairs = fl.from_arrays((x, y), (x[:8], y[:8]))
stored = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
again = fl.from_torch(stored, stored)
sites = fl.from_clients({"A": (x, y), "B": stored}, test=0.2)
table = fl.from_table({"age": x[:, 0], "site": ["A"] * 20 + ["B"] * 20, "ill": y}, target="ill", client="site")

settings = fl.Settings(
    data=fl.DataSettings(name="synthetic"),
    model=fl.ModelSettings(name="linear"),
    clients=fl.ClientsSettings(count=2),
    training=fl.TrainingSettings(rounds=2, local_steps=1),
    privacy=fl.PrivacySettings(noise_scale=0.5),
    compression=fl.CompressionSettings(lattice="A2"),
    run=fl.RunSettings(simulate=True),
)
assert settings == fl.Settings.of(settings.values())
assert "private" in fl.PRESETS
private = fl.preset("private").updated({"clients.overrides": [fl.ClientOverride((0,), noise_scale=0.1)]})
assert fl.prepared(settings).classes == 10

model = fl.Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))
named = fl.build("linear", data)
head = fl.linear_on(fl.Features(torch.nn.Flatten()), data)

simulation = fl.Simulation(settings, data, model)
while not simulation.done:
    lines = simulation.step()


def watch(progress: fl.Progress) -> None:  # or fl.to_wandb(project="mine"), fl.to_mlflow("mine")
    print(progress.lines[0]["round"], "of", progress.rounds)


summary = fl.train(settings, "runs/reference", data, model, watch=watch)
assert len(fl.read_metrics("runs/reference")) == 2
rows = fl.compare(settings, ["fl+gaussian", "cepam-gaussian"], "runs/compared")
