"""`examples/flower-lora` on its tiny model: adapters alone travel, text is learned, bytes are few.

In one process (`tools/flower_lora.py`), and through a real SuperLink. Needs transformers and peft (`pip install
transformers peft`); skips without them.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from flower_lora import EXAMPLE, ran
from loopback import Federation

# Looked for, not imported: the ordinary suite collects this file and runs none of it.
pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("peft") is None,
    reason="the example needs transformers and peft: pip install transformers peft",
)


@pytest.mark.flower
def test_adapters_are_tuned(tmp_path: Path) -> None:
    """Without cepam: that the example learns at all, so that what privacy costs can be read beside it."""
    found = ran(tmp_path, private=False, local_steps=20, num_server_rounds=1, clients=2)
    assert found["perplexity_after"] < 0.9 * found["perplexity_before"]
    assert found["epsilon"] is None


@pytest.mark.slow
def test_two_hundred_users_tune_privately(tmp_path: Path) -> None:
    found = ran(tmp_path, clients=200, rank=1, num_server_rounds=3, clip=0.3, local_steps=10)
    assert 7.9 < found["epsilon"] <= 8.0
    assert found["unit"] == "client"
    assert found["perplexity_after"] < 0.9 * found["perplexity_before"]
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))


@pytest.mark.flower
def test_records_and_a_million_weights_in_under_60_kilobytes(tmp_path: Path) -> None:
    found = ran(tmp_path, unit="record", rank=203, num_server_rounds=1, clients=2, epsilon=8.0)
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))
    assert found["adapter_weights"] > 1_000_000
    assert found["bytes_up_a_client_and_round"] < 60_000
    assert 0 < found["epsilon"] <= 8.0
    assert found["bytes_down_a_client_and_round"] < 4 * found["adapter_weights"]


def _saved(folder: Path) -> str:
    """A model and a tokenizer of one's own, as `save_pretrained` leaves them: letters for tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {letter: k for k, letter in enumerate("?abcdefghijklmnopqrstuvwxyz .")}
    words = Tokenizer(models.WordLevel(letters, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(letters), **shape)).save_pretrained(folder)
    return str(folder)


@pytest.mark.flower
def test_a_local_model_and_text_of_ones_own(tmp_path: Path) -> None:
    from lora_app.text import made_up

    text = tmp_path / "text"
    text.mkdir()
    for client, name in ((0, "0.txt"), (1, "1.txt"), (-1, "test.txt")):
        (text / name).write_text(made_up(client, 200), encoding="utf-8")
    own = {"model": _saved(tmp_path / "model"), "text": str(text), "rank": 2, "length": 32}
    found = ran(tmp_path, unit="record", num_server_rounds=2, clients=2, **own)
    assert 0 < found["epsilon"] <= 8.0
    assert found["adapter_weights"] < 5_000
    assert found["perplexity_after"] < found["perplexity_before"]
    assert found["bytes_up_a_client_and_round"] < 4 * found["adapter_weights"]


@pytest.mark.flower
def test_adapters_travel_through_a_superlink(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    config = {"unit": "record", "clients": 2, "num-server-rounds": 2, "draws": 8, "report": str(report)}
    with Federation(tmp_path / "federation", nodes=2) as federation:
        federation.wait_for_nodes(2, 180)
        done = federation.run(EXAMPLE, config, 900)
    found = json.loads(report.read_text())
    rounds = found["rounds"].values()
    assert [metrics["cepam-replies"] for metrics in rounds] == [2, 2]
    assert 0 < found["epsilon"] <= 8.0
    assert found["bytes_up_a_client_and_round"] < 4 * found["adapter_weights"] / 30
    # What the SuperLink itself counted from the nodes: sealed updates and Flower's own words about them, no float32.
    assert done.inbound_bytes < 4 * 4 * found["adapter_weights"]
