"""A run that reports an epsilon has secret noise: fresh for every run, and gone from the disk at its end."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from cepam.errors import CepamError
from cepam.fl import Dataset, Model, Settings, Simulation, from_arrays, train
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import Randomness, RunSecret
from cepam.fl.config import toml
from cepam.fl.simulation import Sent
from cepam.keys import Address, Key


@pytest.fixture
def secret(quick: Settings) -> Settings:
    return quick.updated({"run.simulate": False, "privacy.noise_scale": 0.5})


def sent_by(settings: Settings, data: Dataset) -> tuple[Simulation, list[bytes]]:
    messages: list[bytes] = []

    def watch(sent: Sent) -> None:
        messages.extend(each.message for each in sent.envelopes if each.message is not None)

    simulation = Simulation(settings, data, watch=watch)
    simulation.step()
    return simulation, messages


def test_two_runs_with_equal_settings_share_no_key_draw_or_message(small: Dataset, secret: Settings) -> None:
    (first, ours), (second, theirs) = sent_by(secret, small), sent_by(secret, small)
    assert first.aggregators[0].row.run_id != second.aggregators[0].row.run_id
    assert not {first.rows[0].key(k).secret for k in range(4)} & {second.rows[0].key(k).secret for k in range(4)}
    held = np.array([150] * 4)
    for draw in (sampling.with_replacement, sampling.without_replacement):
        assert (draw(first.rows[0], 0, held, 3, 20) != draw(second.rows[0], 0, held, 3, 20)).any()
    chosen = [np.concatenate(sampling.poisson(run.rows[0], 0, held, 0.5)).tobytes() for run in (first, second)]
    assert chosen[0] != chosen[1]
    cohorts = [[sampling.cohort(run.rows[0], r, 40, 0.5).tobytes() for r in range(9)] for run in (first, second)]
    assert cohorts[0] != cohorts[1]
    assert len(ours) == len(theirs) == 4
    assert not set(ours) & set(theirs)
    # What is public by nature keeps its seed.
    assert [p.tobytes() for p in first.work.parts[0]] == [p.tobytes() for p in second.work.parts[0]]
    np.testing.assert_array_equal(first.vector.initial(1), second.vector.initial(1))


def test_rows_of_one_run_share_nothing() -> None:
    run = RunSecret.fresh()
    roots = {run.row(seed).key(client).secret for seed in range(20) for client in range(20)}
    assert len(roots) == 400
    assert run.row(3).words(0, 0, 0, 4).tobytes() != run.row(4).words(0, 0, 0, 4).tobytes()
    assert RunSecret(run.secret, bytes(16)).row(3).root != run.row(3).root


def noise_of(settings: Settings, data: Dataset) -> np.ndarray:
    """The noise of the first round, all clients in a row."""
    simulation, kept = Simulation(settings, data), []

    def powers(updates, vectors):
        kept.extend(np.asarray(v, np.float64) - u for u, v in zip(updates, vectors))
        return 1.0, 1.0

    simulation.arrays.powers = powers  # type: ignore[method-assign]
    simulation.step()
    return np.concatenate(kept)


def test_retraining_on_data_that_differ_in_one_record_shares_no_noise(small: Dataset, secret: Settings) -> None:
    """25,688 coordinates: a correlation of 0.04 by chance has probability under 1e-9. The simulation must share."""
    inputs = small.train_inputs.copy()
    inputs[7] = 255 - inputs[7]
    neighbour = replace(small, train_inputs=inputs)
    apart = [noise_of(secret, data) for data in (small, neighbour)]
    assert len(apart[0]) == 4 * 6422
    assert abs(np.corrcoef(*apart)[0, 1]) < 0.04
    together = [noise_of(secret.updated({"run.simulate": True}), data) for data in (small, neighbour)]
    assert np.corrcoef(*together)[0, 1] > 0.9


def tiny() -> tuple[Dataset, Model]:
    draw = np.random.default_rng(5)
    sets = ((draw.normal(size=(count, 6)), draw.integers(0, 2, count)) for count in (40, 10))
    return from_arrays(*sets, name="tiny"), Model(lambda: nn.Linear(6, 2), "small linear")


def candidates(folder: Path) -> Iterator[bytes]:
    """Whatever 32 bytes the folder holds: at every place of every file but the messages', raw and in hex."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".bin"):
        raw = path.read_bytes()
        step = 1 if len(raw) < 20_000 else 16
        yield from (raw[at : at + 32] for at in range(0, len(raw) - 31, step))
        for text in re.findall(rb"[0-9a-f]{64}", raw):
            yield bytes.fromhex(text.decode())
        for text in re.findall(rb"[0-9a-f]{32}", raw):
            yield text
            yield bytes.fromhex(text.decode()) * 2


def opened(folder: Path, settings: Settings, data: Dataset, model: Model) -> bool:
    """Whether anything in the folder, or any small seed, opens the first message and so gives away its noise."""
    message = (folder / "messages" / "seed-1" / "round-00001" / "client-0000.bin").read_bytes()
    nonce = bytes.fromhex(toml.read_provenance(folder / "config.toml")["nonce"])
    codec = Simulation(settings, data, model).aggregators[0].plans[0].codec
    seeds = (Randomness(Key.simulated(seed)).key(0) for seed in range(50))
    roots = [key for each in set(candidates(folder)) for key in (
        Key(each), Randomness(Key(each)).key(0), RunSecret(each, nonce).row(1).key(0)
    )]  # fmt: skip
    for key in (*seeds, *roots):
        try:
            codec.decode(message, Address(key, round=0, client=0, run=nonce))
        except CepamError:
            continue
        return True
    return False


@pytest.mark.parametrize("left", ["nothing", "the keys", "the seed"])
def test_nothing_that_a_run_leaves_behind_opens_its_messages(tmp_path: Path, secret: Settings, left: str) -> None:
    """The attack is sharp: it succeeds where the keys are kept, and where a seed was all there was."""
    data, model = tiny()
    settings = secret.updated(
        {
            "run.keep_messages": True,
            "run.keep_keys": left == "the keys",
            "run.simulate": left == "the seed",
            "clients.count": 2,
            "training.rounds": 2,
        }
    )
    train(settings, tmp_path / "run", data, model)
    assert opened(tmp_path / "run", settings, data, model) == (left != "nothing")


def test_the_secret_is_the_owners_alone_and_erased_at_the_end(tmp_path: Path, small: Dataset, secret: Settings) -> None:
    path, seen = tmp_path / "run" / "secret.key", []

    def watch(progress: object) -> None:
        seen.append((stat.S_IMODE(path.stat().st_mode), bytes.fromhex(path.read_text())))

    train(secret, tmp_path / "run", small, watch=watch)
    assert [mode for mode, _ in seen] == [0o600] * 3
    assert len({held for _, held in seen}) == 1
    assert not path.exists()
    everything = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert seen[0][1] not in everything
    assert seen[0][1].hex().encode() not in everything


def test_the_secret_is_on_disk_before_the_first_message(tmp_path: Path, small: Dataset, secret: Settings) -> None:
    train(secret.updated({"run.keep_messages": True, "run.keep_keys": True}), tmp_path / "run", small)
    written = (tmp_path / "run" / "secret.key").stat().st_mtime_ns
    assert all(written <= p.stat().st_mtime_ns for p in (tmp_path / "run" / "messages").rglob("*.bin"))


def test_erasing_overwrites_before_it_unlinks(tmp_path: Path) -> None:
    from cepam._internal.files import erase, write_secret

    write_secret(tmp_path / "secret.key", b"ab" * 32)
    with (tmp_path / "secret.key").open("rb") as still_open:
        erase(tmp_path / "secret.key")
        assert still_open.read() == bytes(64)
    assert not (tmp_path / "secret.key").exists()
    erase(tmp_path / "secret.key")


def test_a_run_that_is_over_is_not_trained_again(tmp_path: Path, small: Dataset, secret: Settings) -> None:
    summary = train(secret, tmp_path / "run", small)
    assert train(secret, tmp_path / "run", small, resume=True) == summary
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"secret\.key is missing"):
        train(secret, tmp_path / "run", small, resume=True)


def test_what_is_kept_is_said_before_the_first_round(tmp_path: Path, small: Dataset, secret: Settings) -> None:
    def said(name: str, **changes: object) -> str:
        heard: list[str] = []
        train(secret.updated({"training.rounds": 1, **changes}), tmp_path / name, small, say=heard.append)  # type: ignore[arg-type]
        return " ".join(heard)

    kept = said("messages", **{"run.keep_messages": True})
    assert "nobody will be able to open them" in kept
    told, unit = re.findall(r"about ([0-9.,]+) (MB|bytes)", kept)[0]
    real = sum(p.stat().st_size for p in (tmp_path / "messages" / "messages").rglob("*.bin"))
    assert float(told.replace(",", "")) * {"MB": 1e6, "bytes": 1.0}[unit] == pytest.approx(real, abs=1e5)
    assert "who has it and the messages can strip the noise" in said(
        "keys", **{"run.keep_messages": True, "run.keep_keys": True}
    )
    assert said("nothing") == ""
    assert "simulated" in said("simulation", **{"run.simulate": True})


def test_every_epsilon_of_a_simulation_says_so(tmp_path: Path, small: Dataset, secret: Settings) -> None:
    for simulate in (True, False):
        folder = tmp_path / str(simulate)
        summary = train(secret.updated({"run.simulate": simulate}), folder, small)
        assert summary["simulated"] is simulate
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert {line["simulated"] for line in lines if "epsilon" in line} == {simulate}
        if find_spec("tensorboard") is not None:
            events = (folder / "events.out.tfevents.0.cepam").read_bytes()
            assert (b"epsilon (simulated)" in events) == simulate
            assert b"epsilon" in events
