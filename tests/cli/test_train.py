from __future__ import annotations

import errno
import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cepam import fl
from cepam.cli import app

QUICK = [
    "--data", "synthetic", "--clients", "3", "--rounds", "2", "--set", "training.local_steps=2", "--noise-scale", "0.5",
]  # fmt: skip


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_train_prints_one_json_object(tmp_path: Path) -> None:
    override = ["--set", "clients.overrides=0-1 noise_scale=0.1"]
    code, out, _ = run("train", *QUICK, "--runs", tmp_path, "--name", "one", "--json", *override)
    assert code == 0
    summary = json.loads(out)
    assert 0 <= summary["accuracy"] <= 1
    assert summary["noise_scales"] == [0.1, 0.5]
    assert summary["noise_multiplier"] == pytest.approx((0.1**2 + 0.1**2 + 0.5**2) ** 0.5, rel=1e-6)  # clip 1
    assert "clipping norms" in summary["noise_units"]["noise_multiplier"]
    assert (summary["server_optimizer"], summary["server_learning_rate"]) == ("sgd", 0.1)
    assert Path(summary["folder"], "curve.png").stat().st_size > 1000
    assert Path(summary["page"]).stat().st_size > 1000
    code, out, _ = run("train", "--resume", "--runs", tmp_path, "--name", "one")
    assert code == 0
    names = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert len([name for name in names if "noise scale" in name]) == 2  # two kinds of clients: two rows
    assert len({name for name in names if name}) == len([name for name in names if name])
    code, out, _ = run("train", "--resume", "--runs", tmp_path, "--name", "one", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == summary["accuracy"]


def test_train_prints_a_table(tmp_path: Path) -> None:
    code, out, _ = run("train", *QUICK, "--runs", tmp_path)
    assert code == 0
    for words in ("test accuracy", "epsilon against outsider", "bits per coordinate up", "index.html"):
        assert words in out


def test_compare(tmp_path: Path) -> None:
    code, out, _ = run("compare", *QUICK, "--runs", tmp_path, "--schemes", "fl,cepam-gaussian-A2", "--seeds", "2")
    assert code == 0
    assert "cepam-gaussian-A2" in out
    assert "index.html" in out


def test_a_run_is_secret_unless_it_is_simulated_and_then_says_so(tmp_path: Path) -> None:
    code, out, _ = run("train", *QUICK, "--runs", tmp_path, "--name", "secret")
    assert code == 0
    assert "simulated" not in out
    code, out, _ = run("train", *QUICK, "--runs", tmp_path, "--name", "seeded", "--simulate")
    assert code == 0
    assert "every epsilon is that of a simulation" in " ".join(out.split())
    shown = [line for line in out.splitlines() if "epsilon against" in line]
    assert len(shown) == 3
    assert all("(simulated)" in line for line in shown)
    code, out, _ = run("compare", *QUICK, "--runs", tmp_path, "--schemes", "cepam-gaussian", "--name", "paired")
    assert code == 0
    assert "(simulated)" in out
    assert "simulated" in (tmp_path / "paired" / "index.html").read_text()
    assert json.loads((tmp_path / "paired" / "comparison.json").read_text())[0]["simulated"] is True
    code, _, error = run("compare", *QUICK, "--runs", tmp_path, "--set", "run.simulate=false")
    assert code == 2
    assert "always a simulation" in error


def test_the_live_view_says_that_an_epsilon_is_simulated() -> None:
    from cepam.fl.runs.progress import in_words

    assert in_words({"epsilon": 1.99}, True) == "eps 1.99 (simulated)"
    assert in_words({"epsilon": 1.99}, False) == "eps 1.99"


def test_flags_that_differ_from_the_run_are_refused_on_resume(tmp_path: Path) -> None:
    assert run("train", *QUICK, "--runs", tmp_path, "--name", "one")[0] == 0
    for flags, said in (
        (
            ["--rounds", "100", "--epsilon", "0.5"],
            "training.rounds is 2 there, 100 here; privacy.epsilon is None there, 0.5 here",
        ),
        (["--preset", "private"], "is 'gradient' there, 'examples' here"),
        (["--set", "clients.overrides=0-1 noise_scale=0.5"], "clients.overrides is () there"),
    ):
        code, _, error = run("train", "--resume", "--runs", tmp_path, "--name", "one", *flags)
        assert code == 2
        assert said in error
        assert len(error.strip().splitlines()) == 1
    assert run("train", "--resume", "--runs", tmp_path, "--name", "one", "--rounds", "2")[0] == 0
    code, _, error = run("train", *QUICK, "--runs", tmp_path, "--name", "one")
    assert code == 2
    assert "already holds a run: choose another --name, or --resume it" in error


def test_a_run_on_own_data_is_not_gone_on_with_here(tmp_path: Path) -> None:
    from cepam import fl

    settings = fl.Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 3,
            "training.rounds": 2,
            "training.local_steps": 2,
            "privacy.noise_scale": 0.05,
        }
    )
    own = replace(fl.synthetic(records=90, tests=30), name="mydata")
    fl.train(settings, tmp_path / "mydata", own)
    (tmp_path / "mydata" / "summary.json").unlink()
    code, _, error = run("train", "--resume", "--runs", tmp_path, "--name", "mydata")
    assert code == 2
    assert "data of its own (mydata)" in error
    assert "fl.train(settings, folder, data, model, resume=True)" in error


def test_ctrl_c_says_where_the_run_stands_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cepam.cli.progress import Watch

    follow = Watch.follow

    def interrupted(watch: Watch, name: str, done: object) -> None:
        follow(watch, name, done)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "follow", interrupted)
    code, _, error = run("train", *QUICK, "--runs", tmp_path, "--name", "one")
    assert code == 130
    assert "stopped after round 1 of 2" in error
    assert f"cepam train --resume --runs {tmp_path} --name one" in error
    assert len(error.strip().splitlines()) == 1
    monkeypatch.undo()
    assert (tmp_path / "one" / "secret.key").exists()
    assert run("train", "--resume", "--runs", tmp_path, "--name", "one")[0] == 0
    assert not (tmp_path / "one" / "secret.key").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_say_how_to_go_on_as_ctrl_c_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from cepam.cli.progress import Watch

    number = getattr(signal, name)
    before, follow = signal.getsignal(number), Watch.follow

    def signalled(watch: Watch, name: str, done: object) -> None:
        follow(watch, name, done)  # type: ignore[arg-type]
        signal.raise_signal(number)

    monkeypatch.setattr(signal, "SIG_IGN", object())  # whatever started these tests may ignore SIGHUP
    monkeypatch.setattr(Watch, "follow", signalled)
    code, _, error = run("train", *QUICK, "--runs", tmp_path, "--name", "one")
    assert code == 128 + number
    assert f"cepam train --resume --runs {tmp_path} --name one" in error
    assert len(error.strip().splitlines()) == 1
    assert signal.getsignal(number) == before


def test_a_full_disk_at_the_end_of_a_file_names_it_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is still in a buffer fails again when the file is closed, without its name.
    from cepam.fl.runs import training

    def full(simulation: object, folder: Path, watch: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "metrics.jsonl"))
        finally:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(training, "_rounds", full)
    code, _, error = run("train", *QUICK, "--runs", tmp_path, "--name", "one")
    assert code == 2
    assert f"{tmp_path / 'one' / 'metrics.jsonl'}: the disk is full" in error
    assert f"cepam train --resume --runs {tmp_path} --name one" in error


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    assert run("train", *QUICK, "--runs", tmp_path, "--name", "one", "--set", "run.keep_keys=true")[0] == 0
    (tmp_path / "one" / "summary.json").unlink()
    (tmp_path / "one" / "checkpoint.npz").write_bytes(b"PK garbage")
    code, _, error = run("train", "--resume", "--runs", tmp_path, "--name", "one")
    assert code == 2
    assert "checkpoint.npz is damaged" in error
    assert len(error.strip().splitlines()) == 1


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cepam.fl.runs import checkpoint

    def full(*items: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    code, _, error = run("train", *QUICK, "--runs", tmp_path, "--name", "one")
    assert code == 2
    assert f"make room, then resume: cepam train --resume --runs {tmp_path} --name one" in error
    assert str(tmp_path / "one") in error


def test_data_fetch() -> None:
    code, out, _ = run("data", "fetch", "synthetic", "--json")
    assert code == 0
    assert json.loads(out)["train"] == 6000


def test_set_reaches_every_setting(tmp_path: Path) -> None:
    from cepam.cli.settings import chosen_settings, shown
    from cepam.fl.config.settings import OVERRIDES, Settings, described

    sets = ["privacy.epsilon=2", "clients.byzantine=0-2,5", "run.keep_keys=true", "data.folder=here", "model.name=mlp"]
    found = chosen_settings(None, None, [*sets, "privacy.epsilon=3", "clients.dropout_handling=charge"], {})
    assert found.privacy.epsilon == 3.0
    assert found.clients.byzantine == (0, 1, 2, 5)
    assert (found.run.keep_keys, found.data.folder, found.model.name) == (True, "here", "mlp")
    every = Settings.of({"privacy.noise_scale": 0.5}).values()
    texts = [f"{name}={shown(value)}" for name, value in every.items() if name != OVERRIDES]
    assert chosen_settings(None, None, texts, {}).values() == every
    assert len(texts) == len(list(described())) - 1
    (tmp_path / "c.toml").write_text("[privacy]\nnoise_scale = 0.2\n[training]\nrounds = 7\n")
    layered = chosen_settings("private", tmp_path / "c.toml", ["training.slices=3"], {"rounds": 9})
    assert (layered.privacy.noise_scale, layered.privacy.epsilon) == (0.2, None)
    assert (layered.training.rounds, layered.training.slices, layered.training.update) == (9, 3, "examples")
    overrides = ["clients.overrides=0-1 noise_scale=0.1", "clients.overrides='site A' lattice=E8 weight=2"]
    first, second = chosen_settings("algorithm1", None, overrides, {}).clients.overrides
    assert (first.clients, first.noise_scale) == ((0, 1), 0.1)
    assert (second.clients, second.lattice, second.weight) == (("site A",), "E8", 2.0)
    with pytest.raises(ValueError, match="not both"):
        chosen_settings("private", None, ["privacy.epsilon=2", "privacy.noise_scale=1"], {})


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_all_lists_every_setting(command: str) -> None:
    from cepam.fl.config.settings import described

    code, out, _ = run(command, "--help-all")
    assert code == 0
    plain = " ".join(out.split())
    for name, _, each in described():
        assert f"\n  {name} = " in out
        assert " ".join(each.metadata["help"].split()) in plain
        assert not each.metadata["choices"] or f"One of: {', '.join(each.metadata['choices'])}." in plain


def test_help_shows_the_common_flags_in_groups() -> None:
    code, out, _ = run("train", "--help")
    assert code == 0
    for group in ("Configuration", "Data and model", "Training", "Privacy", "Compression", "Run", "Output"):
        assert f"─ {group} ─" in out
    assert set(re.findall(r"^│ (--[a-z-]+)", out, re.M)) == {
        "--preset", "--config", "--set", "--data", "--model", "--clients", "--rounds", "--server-learning-rate",
        "--epsilon", "--delta", "--noise-scale", "--clipping-norm", "--scheme", "--seed", "--seeds", "--simulate",
        "--device", "--name", "--runs", "--resume", "--json", "--help-all", "--help",
    }  # fmt: skip
    assert "Default: 30." in out


@pytest.mark.parametrize("command", [["train"], ["compare"], ["data", "fetch"]])
def test_help_teaches_with_an_example(command: list[str]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert f"cepam {' '.join(command)} " in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", *QUICK, "--clients", "0"], "clients.count must be a whole number of at least 1, got 0"),
        (["train", *QUICK, "--set", "training.local_steps=0"], "training.local_steps must be"),
        (["train", *QUICK, "--set", "tau=3"], "--set has names of version 0.1: tau is now training.local_steps"),
        (["train", *QUICK, "--set", "training.local_step=3"], "did you mean training.local_steps?"),
        (["train", *QUICK, "--set", "training.rounds=3"], "training.rounds is given by its flag and by --set"),
        (
            ["train", *QUICK, "--set", "training.batch_size=many"],
            "training.batch_size must be a whole number, got 'many'",
        ),
        (["train", *QUICK, "--set", "run.keep_keys=perhaps"], "run.keep_keys must be true or false, got 'perhaps'"),
        (["train", *QUICK, "--set", "privacy.unit"], "--set wants table.name=value"),
        (["train", *QUICK, "--set", "clients.overrides=0 noise=1"], "clients.overrides.noise is now clients.overrides"),
        (["train", *QUICK, "--set", "clients.overrides=0 lattice"], "name=value after the client numbers"),
        (["train", "--preset", "steady"], "preset steady is now dp-ftrl"),
        (["train", *QUICK, "--scheme", "magic"], "compression.scheme must be one of"),
        (["train", *QUICK[:-2], "--delta", "0.99", "--epsilon", "1"], "delta"),
        (["train", *QUICK[:-2], "--scheme", "fl", "--epsilon", "1"], "impossible"),
        (["train", "--config", "missing.toml"], "no such configuration file"),
        (["train", *QUICK, "--data", "mnist", "--set", "data.folder=missing"], "missing"),
        (["train", "--preset", "secret"], "preset must be one of"),
        (["train", "--resume", "--name", "nothing"], "no run named"),
        (["compare", *QUICK, "--schemes", "fl,magic"], "unknown scheme"),
        (["data", "fetch", "cifar"], "data must be one of"),
    ],
)
def test_bad_configuration_is_one_line_and_code_2(tmp_path: Path, words: list[str], said: str) -> None:
    runs = [] if words[0] == "data" else ["--runs", str(tmp_path)]
    code, _, error = run(*words, *runs)
    assert code == 2
    assert said in error
    assert error.startswith(f"cepam {' '.join(words[: 2 if words[0] == 'data' else 1])}: ")
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error


def test_the_rate_follows_a_target_unless_it_is_given(tmp_path: Path) -> None:
    from cepam.cli.settings import chosen_settings

    def rate(preset: str, config: Path | None = None, sets: list[str] | None = None, **flags: Any) -> float:
        return chosen_settings(preset, config, sets, flags).training.server_learning_rate

    assert rate("private") == 4.0
    assert rate("private", epsilon=0.5) == pytest.approx(1.0, rel=0.01)
    assert rate("private", sets=["privacy.epsilon=0.5"]) == pytest.approx(1.0, rel=0.01)
    assert rate("private", epsilon=0.5, server_learning_rate=3.0) == 3.0
    assert rate("users", epsilon=0.5) == 2.5
    file = tmp_path / "own.toml"
    file.write_text("[training]\nserver_learning_rate = 7.0\n")
    assert rate("private", file, epsilon=0.5) == 7.0
    assert rate("private", epsilon=8.0) == pytest.approx(16.0, rel=0.01)
    assert rate("private", epsilon=8.0, data="synthetic") == 4.0  # other data: not above the preset's own


def test_the_rate_that_was_taken_is_said(tmp_path: Path) -> None:
    from cepam.cli.settings import chosen_settings, rate_stays

    def said(preset: str | None, config: Path | None = None, **flags: Any) -> str:
        settings = chosen_settings(preset, config, [], flags)
        return settings.followed_rate or rate_stays(preset, config, [], flags, settings)

    assert said("private", epsilon=0.5) == fl.preset("private").updated({"privacy.epsilon": 0.5}).followed_rate
    assert "1.005" in said("private", epsilon=0.5)
    assert "2.5" in said("users", epsilon=0.5)
    file = tmp_path / "own.toml"
    file.write_text("[training]\nserver_learning_rate = 7.0\n")
    for silent in (
        said("private"),
        said("private", epsilon=0.5, server_learning_rate=3.0),
        said("users", epsilon=0.5, server_learning_rate=1.0),
        said("users", file, epsilon=2),
    ):
        assert silent == ""
