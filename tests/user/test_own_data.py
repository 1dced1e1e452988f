"""A user's own records as they lie: clients by name, torch datasets, a table, functions named on the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

torch: Any = pytest.importorskip("torch")

from cepam import fl  # noqa: E402
from tests.user.terminal import answered  # noqa: E402

QUICK = {
    "training.rounds": 2,
    "training.local_steps": 2,
    "training.batch_size": 4,
    "privacy.clipping_norm": 1.0,
    "run.evaluate_every": 2,
    "model.name": "linear",
    "privacy.noise_scale": 0.5,
}


def records(count: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, 5)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


def test_clients_by_name_with_budgets_of_their_own(tmp_path: Path) -> None:
    data = fl.from_clients({"hospital A": records(60, 1), "hospital B": records(200, 2)}, test=records(50, 3))
    settings = fl.Settings.of(
        {
            **QUICK,
            "privacy.noise_scale": None,
            "privacy.epsilon": 3.0,
            "clients.overrides": [{"clients": ["hospital B"], "epsilon": 1.5, "delta": 1e-6}],
        }
    )
    summary = fl.train(settings, tmp_path / "run", data)
    rows = {row["name"]: row for row in summary["clients"]}
    assert [(name, row["records"], row["target_epsilon"], row["delta"]) for name, row in rows.items()] == [
        ("hospital A", 60, 3.0, 1e-5), ("hospital B", 200, 1.5, 1e-6),
    ]  # fmt: skip
    assert all(0 < row["epsilon"] <= row["target_epsilon"] for row in rows.values())
    again = fl.train(settings, tmp_path / "run", data, resume=True)
    assert again == summary
    with pytest.raises(ValueError, match="no client is named 'hospital C': there are hospital A, hospital B"):
        fl.Simulation(
            fl.Settings.of({**QUICK, "clients.overrides": [{"clients": ["hospital C"], "noise_scale": 1.0}]}), data
        )


def test_a_torch_dataset_a_client_and_a_share_held_out() -> None:
    sets = {f"phone {k}": torch.utils.data.TensorDataset(*map(torch.tensor, records(20 + k, k))) for k in range(10)}
    data = fl.from_clients(sets, test=0.25)
    assert data.owners is not None
    assert np.bincount(data.owners).tolist() == [15, 16, 16, 17, 18, 19, 20, 20, 21, 22]
    assert data.records + len(data.test_labels) == 245
    simulation = fl.Simulation(fl.Settings.of(QUICK), data)
    assert simulation.settings.clients.count == 10
    assert [plan.records for plan in simulation.aggregators[0].plans] == np.bincount(data.owners).tolist()
    with pytest.raises(ValueError, match=r"there are phone 0, .* and 2 more"):
        fl.Simulation(fl.Settings.of({**QUICK, "clients.overrides": [{"clients": "nobody", "noise_scale": 1.0}]}), data)


def table(path: Path, ill: list[str]) -> Path:
    x, y = records(90, 4)
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["site", "age", "pressure", "ill"])
        writer.writerows([f"site {k % 3}", x[k, 0], x[k, 1], ill[y[k]]] for k in range(90))
    return path


def test_a_column_that_says_whose_row_it_is(tmp_path: Path) -> None:
    data = fl.from_table(table(tmp_path / "patients.csv", ["no", "yes"]), target="ill", client="site")
    assert data.clients == ("site 0", "site 1", "site 2")
    assert (data.shape, data.classes, data.name) == ((2,), 2, "patients.csv")
    with pytest.raises(ValueError, match="no column 'cured': there are 'site', 'age'"):
        fl.from_table(tmp_path / "patients.csv", target="cured")
    with pytest.raises(ValueError, match="column 'site' holds words"):
        fl.from_table(tmp_path / "patients.csv", target="ill")
    held = fl.from_table({"age": [1.0, 2.0, 3.0], "cost": [0.5, 1.5, 2.5]}, "cost", classes=0, test=0.4)
    assert held.train_labels.dtype == np.float32
    assert not held.clients


def test_a_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x, y = records(60, 5)
    columns = {"whose": [f"c{k % 2}" for k in range(60)], "a": x[:, 0], "b": x[:, 1], "y": y}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    read, plain = (fl.from_table(each, "y", "whose") for each in (tmp_path / "t.parquet", columns))
    np.testing.assert_array_equal(read.train_inputs, plain.train_inputs)
    np.testing.assert_array_equal(read.owners, plain.owners)
    settings = {
        "data.name": str(tmp_path / "t.parquet"),
        "data.target_column": "y",
        "data.client_column": "whose",
        "privacy.noise_scale": 0.5,
    }
    named = fl.prepared(
        fl.Settings.of(settings)
    )  # what `cepam train --data t.parquet --set data.target_column=y …` reads
    assert named.clients == read.clients == ("c0", "c1")
    assert named.train_inputs.shape == read.train_inputs.shape


MODULE = """
import numpy as np
from torch import nn

def load():
    draw = np.random.default_rng(0)
    x = {f"site {k}": draw.normal(size=(30, 4)).astype("f4") for k in range(20)}
    return {name: (each, (each[:, 0] > 0).astype(int)) for name, each in x.items()}

def build(data):
    return nn.Sequential(nn.Linear(*data.shape, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, data.classes))
"""


def trained(folder: Path, *words: str) -> Result:
    return answered(
        "train", "--rounds", "2", "--set", "training.local_steps=1", "--set", "training.batch_size=4", *words,
        folder=folder,
    )  # fmt: skip


def test_a_function_that_gives_clients_and_test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("with_test.py").write_text(MODULE + "\ndef both():\n    held = load()\n    return held, held['site 0']\n")
    data = fl.prepared(fl.Settings.of({"data.name": "with_test:both", "privacy.noise_scale": 0.5}))
    assert len(data.clients) == 20
    assert len(data.train_labels) == 600
    assert len(data.test_labels) == 30


def test_functions_and_tables_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    own = ("--data", "mine:load", "--model", "mine:build", "--noise-scale", "0.5", "--name", "own")
    done = trained(tmp_path, *own, "--set", "clients.overrides='site 3' noise_scale=0.75")
    assert done.exit_code == 0, done.stderr
    assert "site 3" in done.stdout
    assert "site 15" not in done.stdout
    assert "and 8 more clients: summary.json has them all" in done.stdout
    table(tmp_path / "patients.csv", ["0", "1"])
    columns = ("--set", "data.target_column=ill", "--set", "data.client_column=site")
    named = ("--data", "patients.csv", *columns, "--model", "linear")
    assert trained(tmp_path, *named, "--noise-scale", "0.5").exit_code == 0
    lost = trained(tmp_path, "--data", "mine:lost", "--noise-scale", "0.5")
    assert lost.stderr.strip() == "cepam train: mine:lost: module mine has no function 'lost'"


def test_kept_messages_say_beforehand_what_they_take() -> None:
    data = fl.from_clients({"A": records(60, 1), "B": records(90, 2)}, test=records(50, 3))
    settings = fl.Settings.of(
        {**QUICK, "training.rounds": 40_000, "privacy.noise_scale": 20.0, "run.keep_messages": True}
    )
    (told,) = [text for text in fl.Simulation(settings, data).warnings if text.startswith("messages are kept")]
    assert "nobody will be able to open them" in told
    assert 80_000 * 18 < 1e6 * float(told.split()[4]) < 80_000 * 60  # twelve weights and a seal, two clients
