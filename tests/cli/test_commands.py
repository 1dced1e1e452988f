"""The command line: what it writes, what it prints, and how it refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import cepam
from cepam.cli import app

CODEC = ["--noise-scale", "0.01", "--lattice", "E8"]


def run(*words: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def refused(*words: object) -> str:
    """The one line that the command prints when it refuses its input."""
    lines = run(*words, code=2).stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return str(lines[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run("keygen", "a.key")
    np.save("update.npy", np.random.default_rng(0).normal(0, 0.01, 6422).astype(np.float32))
    return tmp_path


def test_version_and_help() -> None:
    assert run("--version").stdout == f"cepam {cepam.__version__}\n"
    for command in ("keygen", "encode", "decode", "inspect", "verify"):
        text = run(command, "--help").stdout
        assert "Example" in text
        assert "--json" in text


@pytest.mark.parametrize(("words", "said"), [("encode", "The update: a .npy file"), ("data fetch", "mnist, fashion")])
def test_arguments_say_what_they_are(words: str, said: str) -> None:
    assert said in CliRunner().invoke(app, [*words.split(), "--help"]).output


def test_keys_are_private_and_never_overwritten(folder: Path) -> None:
    assert stat.S_IMODE((folder / "a.key").stat().st_mode) == 0o600
    before = (folder / "a.key").read_bytes()
    assert "never overwritten" in refused("keygen", "a.key")
    assert (folder / "a.key").read_bytes() == before
    assert json.loads(run("keygen", "b.key", "--json").stdout)["key_file"] == "b.key"
    assert (folder / "b.key").read_bytes() != before


def test_an_update_there_and_back(folder: Path) -> None:
    place = ["--key", "a.key", "--round", 1, *CODEC]
    facts = json.loads(run("encode", "update.npy", "m", *place, "--clipping-norm", 1, "--json").stdout)
    assert facts["clip"] == "l2 1"
    assert facts["bytes"] == (folder / "m").stat().st_size
    run("decode", "m", "v.npy", *place)
    update, vector = np.load("update.npy"), np.load("v.npy")
    assert vector.dtype == update.dtype
    assert 0.009 < (vector - update).std() < 0.011


def test_inspect_shows_more_with_the_key(folder: Path) -> None:
    place = ["--key", "a.key", "--round", 1, *CODEC]
    run("encode", "update.npy", "m", *place, "--unclipped")
    outside = json.loads(run("inspect", "m", "--json").stdout)
    assert set(outside) == {"message", "bytes", "version", "codec_tag", "coder"}
    inside = json.loads(run("inspect", "m", *place, "--json").stdout)
    assert (inside["coordinates"], inside["type"], inside["lattice"]) == (6422, "float32", "E8")
    assert inside["bits_per_coordinate"] == 8 * inside["bytes"] / 6422


def test_an_address_in_the_used_list_is_refused(folder: Path) -> None:
    place = ["--key", "a.key", "--round", 1, *CODEC, "--clipping-norm", 1, "--used", "used.bin"]
    run("encode", "update.npy", "m", *place)
    assert "used before" in refused("encode", "update.npy", "m2", *place)
    assert not (folder / "m2").exists()
    assert not (folder / "a.key.used").exists()
    decode = ["--key", "a.key", "--round", 1, *CODEC, "--used", "seen.bin"]
    run("decode", "m", "v.npy", *decode)
    assert "used before" in refused("decode", "m", "v.npy", *decode)


def test_used_addresses_are_noted_beside_the_key(folder: Path) -> None:
    place = ["--key", "a.key", *CODEC, "--clipping-norm", 1]
    run("encode", "update.npy", "m", *place, "--round", 1)
    assert stat.S_IMODE((folder / "a.key.used").stat().st_mode) == 0o600
    assert "used before" in refused("encode", "update.npy", "m2", *place, "--round", 1)
    assert not (folder / "m2").exists()
    run("encode", "update.npy", "m2", *place, "--round", 1, "--no-remember")
    assert (folder / "m").read_bytes() == (folder / "m2").read_bytes()
    assert "folder does not exist" in refused("encode", "update.npy", "none/m", *place, "--round", 2)
    run("encode", "update.npy", "m3", *place, "--round", 2)
    assert (folder / "a.key.used").stat().st_size == 32
    assert "give one of them" in refused(
        "encode", "update.npy", "x", *place, "--round", 3, "--no-remember", "--used", "u"
    )
    (folder / "a.key.used").write_bytes(b"cut")
    assert "a.key.used is not a list of used addresses" in refused("encode", "update.npy", "x", *place, "--round", 3)


def test_a_clip_is_given_or_its_absence_is(folder: Path) -> None:
    place = ["--key", "a.key", "--round", 1]
    assert "give either --clipping-norm" in refused("encode", "update.npy", "m", *place, *CODEC)
    assert "give either --clipping-norm" in refused(
        "encode", "update.npy", "m", *place, *CODEC, "--clipping-norm", 1, "--unclipped"
    )
    assert "bound must lie" in refused("encode", "update.npy", "m", *place, *CODEC, "--clipping-norm", -1)
    assert not (folder / "a.key.used").exists()
    np.save("large.npy", np.full(100, 3.0))
    for law, norm in ((["--noise-scale", 0.001], 2), (["--law", "laplace", "--noise-scale", 0.001], 1)):
        facts = json.loads(run("encode", "large.npy", "m", *place, *law, "--clipping-norm", 2, "--json").stdout)
        assert facts["clip"] == f"l{norm} 2"
        run("decode", "m", "v.npy", *place, *law)
        assert np.linalg.norm(np.load("v.npy"), norm) == pytest.approx(2, rel=0.1)
        place[-1] = 2
    assert "none" in run("encode", "large.npy", "m", "--key", "a.key", "--round", 9, *CODEC, "--unclipped").stdout


def test_a_generator_file_names_a_lattice(folder: Path) -> None:
    np.save("g.npy", np.array([[1.0, 0.4], [0.0, 1.0]]))
    place = ["--key", "a.key", "--round", 1, "--law", "laplace", "--noise-scale", 0.1, "--lattice", "g.npy"]
    run("encode", "update.npy", "m", *place, "--clipping-norm", 9)
    run("decode", "m", "v.npy", *place)
    assert len(np.load("v.npy")) == 6422


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["encode", "nan.npy", "x", "--noise-scale", 1], "NaN"),
        (["encode", "two.npy", "x", "--noise-scale", 1], "one dimension"),
        (["encode", "junk.npy", "x", "--noise-scale", 1], "not a .npy file"),
        (["encode", "none.npy", "x", "--noise-scale", 1], "No such file"),
        (["encode", "update.npy", "x"], "needs --noise-scale"),
        (["encode", "update.npy", "x", "--noise-scale", 1, "--radius", 1], "--radius does not go with --law gaussian"),
        (["encode", "update.npy", "x", "--noise-scale", -1], "sigma must lie"),
        (["encode", "update.npy", "x", "--noise-scale", 1, "--lattice", "Q7"], "lattice must be"),
        (["encode", "update.npy", "x", "--noise-scale", 1, "--frob"], "No such option"),
        (["encode", "update.npy", "none/x", "--noise-scale", 1], "folder does not exist"),
        (["encode", "update.npy", "x", "--noise-scale", 1, "--coder", "paper"], "bound"),
        (["decode", "junk.npy", "x", "--noise-scale", 1], "bytes"),
        (["decode", "update.npy", "x", "--noise-scale", 1], "version"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, words: list[object], reason: str) -> None:
    np.save("nan.npy", np.array([np.nan]))
    np.save("two.npy", np.zeros((2, 2)))
    Path("junk.npy").write_bytes(b"hello")
    clip = ["--unclipped"] if words[0] == "encode" else []
    line = refused(*words, *clip, "--key", "a.key", "--round", 1)
    assert line.startswith(f"cepam {words[0]}: ")
    assert reason in line


def test_wrong_keys_and_codecs_are_refused(folder: Path) -> None:
    run("keygen", "b.key")
    run("encode", "update.npy", "m", "--key", "a.key", "--round", 1, *CODEC, "--unclipped")
    assert "seal does not open" in refused("decode", "m", "v.npy", "--key", "b.key", "--round", 1, *CODEC)
    assert "seal does not open" in refused("decode", "m", "v.npy", "--key", "a.key", "--round", 2, *CODEC)
    other = ["--noise-scale", 0.02, "--lattice", "E8"]
    assert "another codec" in refused("decode", "m", "v.npy", "--key", "a.key", "--round", 1, *other)
    assert not (folder / "v.npy").exists()
    assert "not a key file" in run("inspect", "m", "--key", "m", *CODEC, code=2).stderr


def test_unknown_commands_are_refused() -> None:
    assert refused("frob").startswith("cepam: No such command")


def test_verify_prints_a_certificate_and_draws_a_figure(folder: Path) -> None:
    words = ["verify", "--noise-scale", 0.01, "--lattice", "Z1", "--samples", 10_000, "--false-alarm", 1e-9]
    text = run(*words, "--plot", "out.png").stdout
    assert text.startswith("PASSED: Gaussian(sigma=0.01) on Z1\n")
    assert "p-value" in text
    for shown in (text, run(*words, "--all").stdout):
        assert max(map(len, shown.splitlines())) <= 80
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads(run(*words, "--json").stdout)
    assert facts["passed"]
    assert {"KS", "chi-square", "variance", "independence"} <= {check["statistic"] for check in facts["checks"]}
    assert "samples" in refused("verify", "--noise-scale", 0.01, "--samples", 5)
    assert "folder" in refused("verify", "--noise-scale", 0.01, "--plot", "none/out.png")


def test_verify_certifies_the_noise_of_a_sum(folder: Path) -> None:
    sums = ["verify", "--trust", "secure-aggregation"]
    text = run(*sums, "--clients", 3, "--noise-scale", 0.01, "--samples", 10_000, "--false-alarm", 1e-9).stdout
    assert text.startswith("PASSED: Gaussian(sigma=0.0173")
    assert "integers" in refused(*sums, "--noise-scale", 0.01, "--lattice", "E8")
    assert "Gaussian" in refused(*sums, "--law", "laplace", "--noise-scale", 0.01)
    assert "clients" in refused(*sums, "--noise-scale", 0.01, "--clients", 1)
