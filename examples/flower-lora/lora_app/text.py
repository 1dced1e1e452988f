"""Text as rows of tokens: files of yours, or sentences that are made up, a taste for each user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Encode = Callable[[str], list[int]]
WHO = ("the nurse", "a doctor", "my friend", "the driver", "our teacher", "the cook")
DOES = ("sees", "likes", "finds", "brings", "paints", "keeps")
WHAT = ("a red house", "the old boat", "some warm bread", "a small dog", "the green door", "two tall trees")


def made_up(user: int, sentences: int, seed: int = 0) -> str:
    """Sentences of a tiny grammar; every user prefers some words, and `user` -1 none: the test text."""
    draw = np.random.default_rng([seed, user + 1])
    taste = [draw.dirichlet(np.full(len(words), 0.7 if user >= 0 else 50.0)) for words in (WHO, DOES, WHAT)]
    chosen = [draw.choice(len(words), sentences, p=p) for words, p in zip((WHO, DOES, WHAT), taste)]
    return " ".join(f"{WHO[a]} {DOES[b]} {WHAT[c]}." for a, b, c in zip(*chosen))


def rows(text: str, encode: Encode, length: int) -> Tensor:
    """The text cut into examples of `length` tokens; what is left over is left out."""
    tokens = torch.tensor(encode(text))
    count = len(tokens) // length
    if count == 0:
        raise ValueError(f"the text has {len(tokens)} tokens, an example needs {length}: give more, or lower length")
    return tokens[: count * length].view(count, length)


def examples_of(folder: str, client: int, encode: Encode, length: int) -> Tensor:
    """The examples of a client, from its file in the folder or made up; client -1 stands for the test text."""
    if not folder:
        return rows(made_up(client, 400 if client >= 0 else 200), encode, length)
    name = f"{client}.txt" if client >= 0 else "test.txt"
    return rows((Path(folder) / name).read_text(encoding="utf-8"), encode, length)
