"""A frozen Llama and its adapters: the architecture by another's code, GGUF files, and runs that learn."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cepam import fl
from cepam.fl.data.texts import PADDING
from cepam.fl.models import llama, network
from cepam.fl.models.llama import Adapted, Llama, LlamaShape, signs
from cepam.fl.models.sequences import token_accuracy, token_loss

SHAPE = LlamaShape(layers=2, width=64, inner=96, heads=4, shared=2, vocabulary=40)


def weights(shape: LlamaShape = SHAPE, seed: int = 3) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    sizes: dict[str, tuple[int, ...]] = {"token_embd": (shape.vocabulary, shape.width), "output_norm": (shape.width,)}
    for block in range(shape.layers):
        sizes |= {f"blk.{block}.{name}": size for name, size in shape.sizes().items()}
    return {name: torch.randn(size, generator=draw) * (1.0 if "norm" in name else 0.3) for name, size in sizes.items()}


def adapted(layers: tuple[str, ...] = ("attn_q", "attn_v"), rank: int = 2) -> Adapted:
    return Adapted(Llama(SHAPE, weights()), layers, rank)


NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def test_logits_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100_000.0, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )  # fmt: skip
    other = transformers.LlamaForCausalLM(config).eval()
    held, state = weights(), {}
    for name, value in held.items():
        head, _, tail = name.partition(".")
        block, _, layer = tail.partition(".")
        outside = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}
        state[f"model.layers.{block}.{NAMES[layer]}.weight" if head == "blk" else outside[name]] = value
    state["lm_head.weight"] = held["token_embd"]
    other.load_state_dict(state)
    tokens = torch.randint(0, 40, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        made, wanted = adapted()(tokens), other(input_ids=tokens).logits
    torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        moved = adapted()
        moved.llama = Llama(SHAPE, {**held, "blk.1.attn_k": held["blk.1.attn_k"].flip(0)})
        assert not torch.allclose(moved(tokens), wanted, rtol=1e-3, atol=1e-3)


def test_adapters_add_a_product_of_low_rank() -> None:
    module = adapted()
    assert sum(p.numel() for p in module.parameters()) == 2 * 2 * (64 + 32)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        base = module(tokens)
        held = weights()
        torch.testing.assert_close(module.llama(tokens, lambda *each: None), base)  # B starts from zero
        for name, p in module.columns.items():
            p.normal_(generator=torch.Generator().manual_seed(len(name)))
            block, _, layer = name.partition("_")
            held[f"blk.{block}.{layer}"] += p @ getattr(module, f"rows_{name}")
        merged = Llama(SHAPE, held)(tokens, lambda *each: None)
        torch.testing.assert_close(module(tokens), merged, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(merged, base, rtol=1e-2, atol=1e-2)


def test_random_signs_are_the_same_everywhere() -> None:
    made = signs("3_attn_q", 2, 576)
    assert made.shape == (2, 576)
    assert set(np.unique(made.numpy() * 24.0).round(5)) == {-1.0, 1.0}
    assert int((made[0] > 0).sum()) == 301  # of a fixed hash, so of no library's random numbers
    assert not torch.equal(made, signs("4_attn_q", 2, 576))


def test_copies_share_the_frozen_weights() -> None:
    module = adapted()
    other = copy.deepcopy(module)
    assert other.llama is module.llama
    assert other.columns["0_attn_q"] is not module.columns["0_attn_q"]
    assert not any(name.startswith("llama") for name in module.state_dict())


def test_weights_of_another_shape_are_refused() -> None:
    held = weights()
    held["blk.1.ffn_up"] = held["blk.1.ffn_up"][:-1]
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up must have shape \(96, 64\), got \(95, 64\)"):
        Llama(SHAPE, held)


def gguf_file(path: Path, held: dict[str, torch.Tensor]) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SHAPE.layers)
    writer.add_embedding_length(SHAPE.width)
    writer.add_feed_forward_length(SHAPE.inner)
    writer.add_head_count(SHAPE.heads)
    writer.add_head_count_kv(SHAPE.shared)
    writer.add_vocab_size(SHAPE.vocabulary)
    writer.add_rope_freq_base(SHAPE.base)
    writer.add_layer_norm_rms_eps(SHAPE.floor)
    for name, value in held.items():
        rows = value.numpy()
        if name.endswith(("attn_q", "attn_k")):  # pairs side by side, as converters to GGUF write them
            rows = rows.reshape(-1, 2, SHAPE.head // 2, SHAPE.width).swapaxes(1, 2).reshape(rows.shape)
        kind = gguf.GGMLQuantizationType.F32
        if rows.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd" else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    held = weights()
    gguf_file(tmp_path / "tiny.gguf", held)
    made = llama._read(tmp_path / "tiny.gguf")
    assert (made.shape.layers, made.shape.width, made.shape.heads, made.shape.shared) == (2, 64, 4, 2)
    for name, value in held.items():
        found = made.weight(name) if "." not in name else made.weight(name.split(".")[2], int(name.split(".")[1]))
        scale = float(value.abs().max())
        torch.testing.assert_close(found, value, rtol=0, atol=scale * (0.08 if name.startswith("blk") else 0.005))
    turned = made.weight("attn_q", 0).reshape(-1, SHAPE.head // 2, 2, SHAPE.width).transpose(1, 2).reshape(64, 64)
    assert not torch.allclose(turned, held["blk.0.attn_q"], atol=0.3)  # the order of the file would be wrong


def made_texts() -> fl.Dataset:
    """Users who repeat one public sentence, shifted."""
    draw = np.random.default_rng(2)
    sentence = draw.integers(1, 40, 12)
    rows = np.stack([np.roll(np.tile(sentence, 2), k)[:16] for k in range(60)])
    before = np.pad(rows, ((0, 0), (1, 0)))[:, :-1].astype(np.int32)
    return fl.Dataset(
        "made", (16,), 0, before, rows, before[:8], rows[:8], clients=tuple(f"user {k}" for k in range(30)),
        owners=np.repeat(np.arange(30), 2),
    )  # fmt: skip


def model() -> fl.Model:
    return fl.Model(adapted, "tiny", loss=token_loss, metrics={"accuracy": token_accuracy})


CHANGES = {
    "training.rounds": 6, "run.simulate": True, "run.evaluate_every": 6, "privacy.epsilon": 9.0, "privacy.delta": 0.05,
    "clients.sampling": "fixed", "clients.sampling_rate": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("unit", ["client", "record"])
def test_private_runs_of_both_units_learn(tmp_path: Path, unit: str) -> None:
    changes: dict[str, Any] = dict(CHANGES)
    if unit == "record":
        changes |= {"privacy.unit": "record", "training.update": "examples", "training.record_sampling": "poisson",
                    "training.batch_size": 1, "training.expected_batch_size": 30.0}  # fmt: skip
    settings = fl.preset("chitchat-lora").updated(
        changes | {"privacy.clipping_norm": 1.0, "training.server_learning_rate": 2.0}
    )
    data = made_texts()
    start = model().on(data, "cpu").evaluate(np.zeros((1, 384), np.float32))
    summary = fl.train(settings, tmp_path / "run", data, model())
    assert summary["weights"] == 384
    assert summary["epsilon"] <= 9.0
    assert summary["metrics"]["loss"]["mean"] < start.loss[0] - 0.05, (start.loss, summary["metrics"])
    assert (tmp_path / "run" / "final.pt").stat().st_size < 60_000  # adapters alone


def test_gradients_do_not_depend_on_what_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data, draw = made_texts(), np.random.default_rng(5)
    vectors = draw.normal(0, 0.1, (2, 384)).astype(np.float32)
    of, index = np.array([0, 1, 1]), draw.integers(0, 60, (3, 9))
    count = np.array([9, 2, 3])
    whole = model().on(data, "cpu")
    wanted, losses = whole.summed_gradients(vectors, of, index, count, np.full(3, 0.5, np.float32))
    monkeypatch.setattr(network, "NUMBERS_AT_ONCE", 2 * 16 * 40)
    few = model().on(data, "cpu")
    assert isinstance(few, network.TorchNetwork)
    assert (few.at_once, few.scored, few.rows_together) == (2, 2, 2)
    made, lost = few.summed_gradients(vectors, of, index, count, np.full(3, 0.5, np.float32))
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(lost, losses, rtol=1e-4)
    np.testing.assert_allclose(few.evaluate(vectors).loss, whole.evaluate(vectors).loss, rtol=1e-5)


def test_tokens_stay_whole_numbers() -> None:
    data = made_texts()
    found = model().on(data, "cpu").evaluate(np.zeros((1, 384), np.float32))
    with torch.no_grad():
        logits = adapted()(torch.from_numpy(data.test_inputs).long())
    wanted = torch.stack([token_loss(a[None], b[None]) for a, b in zip(logits, torch.from_numpy(data.test_labels))])
    assert found.loss[0] == pytest.approx(float(wanted.mean()), rel=1e-5)
    assert PADDING == 0


def test_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="smollm2-lora"):
        fl.build("smollm2-lora", fl.synthetic(20, 10))
