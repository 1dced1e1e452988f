"""Installs the wheel into fresh environments and runs every command there: `python tools/test_install.py` (--help).

The sdist is built from the sources, the wheel from the sdist. Each environment gets the wheel by pip, nothing else. In
each, every command runs once as a process, and `tools/installed.py` asks it for its help, hands it a wrong option, and
imports every public name. A command without a line in COMMANDS below fails the test.

The core, without extras, is tried on every Python of PYTHONS that is on the PATH or among pyenv's. One that is absent
is skipped; so is one for which a dependency has no wheel, unless a classifier in `pyproject.toml` names that Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = {
    "torch": "torch", "plots": "matplotlib", "tensorboard": "tensorboard", "flower": "flwr", "flare": "nvflare",
    "dp-accounting": "dp_accounting",
}  # fmt: skip
SHOWN = ("numpy", "scipy", "numba", "cryptography", "typer", "rich", "torch", "matplotlib", "flwr", "nvflare")
# PyTorch is some gigabytes for each version (fewer from an index of CPU wheels): one is tried, in every environment.
TORCH = "torch==2.13.0"
QUICK = "--data synthetic --clients 3 --rounds 2 --set training.local_steps=2 --noise-scale 0.05"
RUN = "--clients 30 --local-steps 15 --records 2000 --rounds 80 --delta 1e-5"
# A correct codec fails `verify` one time in a thousand unless told otherwise.
ALARM = "--false-alarm 1e-9"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
CLASSIFIED = [text.rpartition(" ")[2] for text in PROJECT["project"]["classifiers"] if ":: Python ::" in text]
STARTED = time.monotonic()


@dataclass(frozen=True)
class Environment:
    """What is installed: the extras, at the newest versions that resolve together or at the lowest allowed.

    `lowest` is true, or names the packages that are at their lowest beside the newest of all others. `python` is the
    version of the interpreter.
    """

    name: str
    extras: tuple[str, ...] = ()
    lowest: bool | tuple[str, ...] = False
    python: str = RUNNING

    def constraints(self) -> list[str]:
        """What pip is told besides the wheel's own bounds."""
        optional = PROJECT["project"]["optional-dependencies"]
        texts = PROJECT["project"]["dependencies"] + [text for extra in self.extras for text in optional[extra]]
        bounds = [re.fullmatch(r"([\w.-]+)>=([\w.]+),<.*", text) for text in texts]
        at_lowest = {each[1]: f"{each[1]}=={each[2]}" for each in bounds if each is not None and each[1] != "torch"}
        named = list(at_lowest) if self.lowest is True else self.lowest or ()
        return [TORCH, *(at_lowest[name] for name in named)]

    @property
    def absent(self) -> list[str]:
        """Optional packages that are not there."""
        return ["triton", *(PACKAGE[extra] for extra in PACKAGE if extra not in self.extras)]


ENVIRONMENTS = (
    Environment("newest", ("torch", "plots", "tensorboard", "dp-accounting")),
    # The newest that Flower allows, and the newest Flower whose own requirements can be met.
    Environment("flower", ("torch", "plots", "flower", "flare")),
    Environment("flower-low", ("flower",), lowest=("flwr",)),
    Environment("lowest", ("torch", "plots", "tensorboard", "dp-accounting"), lowest=True),
    Environment("core"),
    *(Environment(f"core-{python}", python=python) for python in PYTHONS if python != RUNNING),
)


@dataclass(frozen=True)
class Command:
    """A command line, the extras without which it says in one line what to install, and a word of its answer."""

    words: str
    needs: tuple[str, ...] = ()
    says: str = ""


COMMANDS = (
    Command("--version", says="cepam"),
    Command("keygen a.key", says="a.key"),
    Command(
        "encode update.npy m.cepam --key a.key --round 1 --noise-scale 0.01 --lattice E8 --clipping-norm 1", says="l2 1"
    ),
    Command("decode m.cepam v.npy --key a.key --round 1 --noise-scale 0.01 --lattice E8", says="grid"),
    Command("inspect m.cepam --key a.key --round 1 --noise-scale 0.01 --lattice E8", says="E8"),
    Command(f"verify --noise-scale 0.01 --lattice Z1 --samples 10000 {ALARM}", says="PASSED"),
    Command(f"verify --noise-scale 0.01 --trust secure-aggregation --samples 10000 {ALARM}", says="PASSED"),
    Command(f"verify --noise-scale 0.01 --lattice Z1 --samples 10000 {ALARM} --plot figure.png", ("plots",), "PASSED"),
    Command("bench --coordinates 100000", says="times the noise"),
    Command(f"privacy epsilon {RUN} --noise-scale 0.25", says="epsilon 2.05172"),
    Command(f"privacy calibrate {RUN} --epsilon 1", says="noise_scale 0.303668"),
    Command(f"privacy explain {RUN} --noise-scale 0.25 --out page.html", says="page.html"),
    Command(
        "privacy audit --clients 1 --clipping-norm 0.5 --noise-scale 1 --record-sampling all --trials 20000",
        says="refuted False",
    ),
    Command("plan --clients 3 --records 500,4000,900 --rounds 20 --coordinates 1000 --epsilon 2", says="noise_scale"),
    Command("new flower-app my-app", says="flwr run . local"),
    Command("policy new policy.toml --noise-scale 4 --clipping-norm 1 --rounds 100 --epsilon 20", says="lying server"),
    Command("policy open account.json", says="opened"),
    Command("policy show policy.toml --account account.json", says="spent: 0 of 100"),
    Command("data list", ("torch",), "cifar10"),
    Command("data fetch synthetic", ("torch",), "6,000 training"),
    Command("data features --help", ("torch",), "frozen public network"),
    Command(f"train {QUICK}", ("torch",), "test accuracy"),
    Command(f"compare {QUICK} --schemes fl,cepam-gaussian --seeds 1", ("torch",), "cepam-gaussian"),
)


class Failed(Exception):
    """A step that did not do what it should, with its output."""


class Skipped(Exception):
    """An environment that cannot be made on this machine, with the reason."""


def say(place: str, text: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {place:11}{text}", flush=True)


def call(words: list[str | Path], folder: Path, expected: int = 0) -> subprocess.CompletedProcess[str]:
    """The finished process; another exit code than the expected one fails with its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"CEPAM_CACHE": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "120"}
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode != expected:
        shown = " ".join(str(word) for word in words)
        raise Failed(f"$ {shown}\n{done.stdout}{done.stderr}exit code {done.returncode}, expected {expected}")
    return done


def interpreter(version: str) -> str:
    """The Python of this version: the running one, else on the PATH, else pyenv's."""
    if version == RUNNING:
        return sys.executable
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for found in [shutil.which(f"python{version}"), *sorted(installed.glob(f"{version}.*/bin/python"), reverse=True)]:
        script = "import ensurepip, sys; print(*sys.version_info[:2], sep='.')"
        # A shim of pyenv is on the PATH for versions that are not switched on, too, and fails.
        if found and subprocess.run([found, "-c", script], capture_output=True, text=True).stdout.strip() == version:
            return str(found)
    raise Skipped(f"no Python {version} on this machine")


def build(folder: Path) -> Path:
    """The wheel, built from the sdist, which is built from a copy of the sources."""
    source, dist, python = folder / "source", folder / "dist", folder / "build" / "bin" / "python"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(python.parents[1], with_pip=True)
    call([python, "-m", "pip", "install", "--quiet", *PROJECT["build-system"]["requires"]], folder)
    script = f"from setuptools.build_meta import build_sdist; build_sdist({str(dist)!r})"
    call([python, "-c", script], source)
    (sdist,) = dist.glob("*.tar.gz")
    call([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", dist, sdist], folder)
    (wheel,) = dist.glob("*.whl")
    say("build", f"{sdist.name}, {wheel.name}")
    return wheel


def install(environment: Environment, wheel: Path, folder: Path) -> dict[str, str]:
    """The versions installed in a fresh virtual environment in the folder."""
    folder.mkdir()
    (folder / "constraints.txt").write_text("\n".join(environment.constraints()) + "\n")
    call([interpreter(environment.python), "-m", "venv", folder / "env"], folder)
    pip: list[str | Path] = [folder / "env" / "bin" / "python", "-m", "pip"]
    what = f"{wheel}[{','.join(environment.extras)}]" if environment.extras else str(wheel)
    options = [] if environment.python == RUNNING else ["--only-binary", ":all:"]
    try:
        call([*pip, "install", "--quiet", "--no-compile", *options, "-c", "constraints.txt", what], folder)
    except Failed as failed:
        missing = re.search("No matching distribution found for (.+)", str(failed))
        if missing is None or environment.python in CLASSIFIED:
            raise
        raise Skipped(f"no wheel of {missing[1]} for Python {environment.python}") from None
    call([*pip, "check"], folder)
    found = {each["name"]: each["version"] for each in json.loads(call([*pip, "list", "--format=json"], folder).stdout)}
    say(environment.name, "installed: " + ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found))
    return found


def look(environment: Environment, folder: Path) -> str:
    """What is offered, in a few words: every name imported, every command's help and its answer to a wrong option."""
    python = folder / "env" / "bin" / "python"
    done = call([python, "-I", ROOT / "tools" / "installed.py", ",".join(environment.absent)], folder)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["problems"]:
        raise Failed("\n".join(found["problems"]))
    known = [command.words for command in COMMANDS]
    for path in found["commands"]:
        if not any(words == path or words.startswith(f"{path} ") for words in known):
            raise Failed(f"`cepam {path}` is not tried: give it a line in COMMANDS of tools/test_install.py")
    return f"{len(found['commands'])} commands, {len(found['names'])} names"


def run(environment: Environment, command: Command, folder: Path) -> None:
    """Check that the command did its work, or said in one line which extra it misses."""
    missing = [extra for extra in command.needs if extra not in environment.extras]
    done = call([folder / "env" / "bin" / "cepam", *command.words.split()], folder, 2 if missing else 0)
    if missing:
        line = done.stderr
        if len(line.splitlines()) != 1 or f"cepam[{missing[0]}]" not in line or not line.startswith("cepam "):
            raise Failed(f"$ cepam {command.words}\n{done.stdout}{line}one line that names {missing[0]} was expected")
    elif command.says not in done.stdout:
        raise Failed(f"$ cepam {command.words}\n{done.stdout}{done.stderr}it does not say {command.says!r}")


def attempt(environment: Environment, wheel: Path, folder: Path) -> tuple[str, str, str, str]:
    """The environment's row of the table, and the output of what failed."""
    place, started, versions = folder / environment.name, time.monotonic(), dict[str, str]()
    try:
        versions = install(environment, wheel, place)
        installed = time.monotonic()
        script = "import numpy; numpy.save('update.npy', numpy.random.default_rng(0).normal(0, 0.01, 6422))"
        call([place / "env" / "bin" / "python", "-c", script], place)
        offered = look(environment, place)
        call([place / "env" / "bin" / "python", "-m", "cepam", "--version"], place)
        if "flower" in environment.extras:
            done = call([place / "env" / "bin" / "python", ROOT / "tools" / "flower_round.py"], place)
            say(environment.name, done.stdout.splitlines()[-1])
        for command in COMMANDS:
            run(environment, command, place)
            say(environment.name, f"cepam {command.words}")
        if ("tensorboard" in environment.extras) != any(place.rglob("*tfevents*")) and "torch" in environment.extras:
            raise Failed("a run writes TensorBoard events where the extra tensorboard is installed, and nowhere else")
        times = f"{installed - started:.0f} s to install, {time.monotonic() - installed:.0f} s to run"
        result = f"Python {environment.python}: {offered}; {times}"
        return environment.name, "passed", result, ""
    except Skipped as skipped:
        say(environment.name, f"skipped: {skipped}")
        return environment.name, "skipped", str(skipped), ""
    except (Failed, subprocess.TimeoutExpired) as failed:
        say(environment.name, "FAILED")
        about = f"Python {environment.python}, typer {versions.get('typer', '?')}"
        return environment.name, "FAILED", about, str(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Installs the wheel into fresh environments and runs every command.")
    names = [each.name for each in ENVIRONMENTS]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="these environments alone")
    parser.add_argument("--jobs", type=int, default=2, help="environments side by side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cepam-install-") as text:
        folder = Path(text)
        wheel = build(folder)
        chosen = [each for each in ENVIRONMENTS if each.name in options.only]
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(lambda each: attempt(each, wheel, folder), chosen))
    for name, _, _, output in rows:
        if output:
            print(f"\n{name}:\n{output}")
    print(f"\n{'environment':13}{'extras':39}{'result':8}")
    for chosen_one, (name, result, about, _) in zip(chosen, rows):
        print(f"{name:13}{','.join(chosen_one.extras) or '-':39}{result:8}{about}")
    return 1 if any(result == "FAILED" for _, result, _, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
