"""Text by its author: roles of plays, users of a chat; a record has words of one of them only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.fl.data import texts
from cepam.fl.data.texts import PADDING, UNKNOWN, VOCABULARY, chitchat, encode, hashed_words, shakespeare, windows

PLAY = """A PLAY

by nobody

SCENE. A wood.

ACT I.

Scene I. Before the wood.

[Enter both.]

Ber.
Who is there?

FIRST WITCH.
Nay, answer me. [Aside] I wait.
Well.

[Exit.]

Ber.
It is
I.
"""


def test_speeches_by_role() -> None:
    found = texts.speeches(PLAY)
    assert found == {"BER": ["Who is there?\n", "It is\nI.\n"], "FIRST WITCH": ["Nay, answer me.  I wait.\nWell.\n"]}


def test_characters_are_tokens_of_a_fixed_table() -> None:
    assert encode("\n ~") == [2, 3, VOCABULARY - 1]
    assert encode("é") == encode("e")
    assert encode("語") == [UNKNOWN]


def test_windows_predict_every_token_once() -> None:
    inputs, targets = windows([5, 6, 7, 8, 9, 10], 3)
    assert inputs.tolist() == [[5, 6, 7], [8, 9, PADDING]]
    assert targets.tolist() == [[6, 7, 8], [9, 10, PADDING]]
    assert windows([5], 3)[0].shape == windows([], 3)[0].shape == (0, 3)
    assert windows([5, 6, 7, 8], 3)[1].tolist() == [[6, 7, 8]]


def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, file: str, made: object) -> Path:
    content = json.dumps(made).encode()
    (tmp_path / file).write_bytes(content)
    known = replace(getattr(texts, package), files={file: hashlib.sha256(content).hexdigest()})
    monkeypatch.setattr(texts, package, known)
    return tmp_path


def test_roles_are_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(tmp_path, monkeypatch, "SHAKESPEARE", "plays.json", {"wood": PLAY, "again": PLAY})
    data = shakespeare(folder, length=8, least=1)
    assert data.clients == ("wood: BER", "wood: FIRST WITCH", "again: BER", "again: FIRST WITCH")
    assert (data.classes, data.tokens, data.shape) == (0, True, (8,))
    assert data.owners is not None
    first = data.train_labels[data.owners == 0]
    assert "".join(texts.SYMBOLS[t - 2] for t in first.ravel() if t) == "Who is there?\n"
    assert "".join(texts.SYMBOLS[t - 2] for t in data.test_labels.ravel() if t).startswith("It is\nI.\n")
    folder = put(tmp_path, monkeypatch, "SHAKESPEARE", "plays.json", {"wood": PLAY + "\nBer.\n" + "Ay. " * 9})
    assert shakespeare(folder, length=8, least=40).clients == ("wood: BER",)


def said(sender: str, text: str) -> dict[str, str]:
    return {"sender": sender, "text": text, "timestamp": "2018"}


def conversations() -> dict[str, object]:
    """Twelve made users in six made conversations, one without a prompt; one of the users says very much."""
    made: dict[str, object] = {}
    for k in range(6):
        mine, partner = f"id-{2 * k:02}", f"id-{2 * k + 1:02}"
        own = [said(mine, f"secret{2 * k} talk about subject number {k} at some length")]
        other = [said(partner, f"secret{2 * k + 1} reply"), said(partner, "that is long enough to be an answer too")]
        groups = [own, other]
        if k == 1:
            groups.append([said(mine, f"more {n}") for n in range(300)])
        made[f"c{k}"] = {"start": f"2018-0{k + 1}", "messages": groups, **({"prompt": f"p{k % 2}"} if k != 5 else {})}
    return made


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> texts.Chitchat:
    return chitchat(put(tmp_path, monkeypatch, "CHITCHAT", "dataset.json", conversations()))


def test_contributions_are_capped_and_identifiers_dropped(chat: texts.Chitchat) -> None:
    assert chat.users == tuple(f"user {k}" for k in range(12))
    assert [len(each) for each in chat.utterances] == [1, 2, 100, 2, *[1, 2] * 4]
    assert [len(each) for each in chat.answers] == [*[1] * 10, 0, 0]
    assert chat.prompts == ("p0", "p1")


def decoded(rows: np.ndarray) -> str:
    return "".join(texts.SYMBOLS[t - 2] for t in rows.ravel() if t)


def test_only_the_users_own_words_train(chat: texts.Chitchat) -> None:
    data = chat.texts(length=16, every=4)
    assert data.clients == tuple(f"user {k}" for k in range(12) if k % 4)
    assert data.owners is not None
    for place, name in enumerate(data.clients):
        words = decoded(data.train_labels[data.owners == place])
        number = int(name.removeprefix("user "))
        assert f"secret{number} " in words
        assert not any(f"secret{other} " in words for other in range(12) if other != number)
    tested = decoded(data.test_labels)
    assert all((f"secret{k} " in tested) == (k % 4 == 0) for k in range(12))


def test_answers_by_prompt(chat: texts.Chitchat) -> None:
    data = chat.answered(64, every=4)
    assert data.clients == tuple(f"user {k}" for k in range(10) if k % 4)
    assert (data.shape, data.classes, data.records, len(data.test_labels)) == ((66,), 2, 7, 3)
    assert data.train_labels.tolist() == [0, 1, 1, 0, 1, 1, 0]
    words, alike = data.train_inputs[:, :64], data.train_inputs[:, 64:]
    np.testing.assert_allclose(np.linalg.norm(words, axis=1), 0.5**0.5, rtol=1e-6)
    np.testing.assert_allclose(alike.sum(axis=1), 0.0, atol=1e-6)
    assert data.scale == texts.ANSWER_LENGTH


def test_the_likeness_to_a_prompt_is_largest_for_its_own_words() -> None:
    said = (("penguins swim", 0),), (("mountains climbing", 1),), (("penguins", 0),)
    chat = texts.Chitchat(("a", "b", "c"), ((), (), ()), said, ("Tell about penguins.", "Which mountains climbed you?"))
    data = chat.answered(512, every=3)
    assert data.train_labels.tolist() == [1, 0]
    assert data.train_inputs[:, 512:].argmax(axis=1).tolist() == [1, 0]


def test_no_representation_shows_an_utterance(chat: texts.Chitchat) -> None:
    shown = [repr(chat), str(chat), repr(chat.texts(length=16)), f"{chat.answered(16)}"]
    assert not any("secret" in each or "array" in each or "id-" in each for each in shown)
    assert "12 users" in shown[0]


def test_hashed_words_are_those_of_the_text_alone() -> None:
    row = hashed_words("The cat, the CAT", 512)
    assert row.dtype == np.float32
    np.testing.assert_array_equal(row, hashed_words("cat", 512))  # `the` is a function word, and the length is 1
    assert np.count_nonzero(row) == 1
    assert not hashed_words("", 8).any()
    assert not hashed_words("I think that it is", 8).any()
    np.testing.assert_array_equal(hashed_words("penguins", 512), hashed_words("penguin", 512))
    assert hashed_words("cat cat dog", 512) @ hashed_words("cat", 512) > 0.3
