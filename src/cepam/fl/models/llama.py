"""A frozen Llama and low-rank adapters of it, the only weights that are trained.

An adapted layer gives x W' + (x A') B'. A has random signs, which are public and fixed, and B is trained from zero
(LoRA with A frozen: Sun et al., FFA-LoRA, 2024). What is added is linear in B, so noise on B meets no noise on A.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cepam.fl.data.smollm2 import field, opened, smollm2


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama.

    Args:
        layers: Number of blocks.
        width: Numbers per token between blocks.
        inner: Numbers per token inside a block's feed-forward part.
        heads: Attention heads.
        shared: Heads of keys and values, each shared by as many heads.
        vocabulary: Number of tokens.
        base: Base of the rotary positions' frequencies.
        floor: What is added to a mean square before its root is taken.
    """

    layers: int
    width: int
    inner: int
    heads: int
    shared: int
    vocabulary: int
    base: float = 100_000.0
    floor: float = 1e-5

    @property
    def head(self) -> int:
        """Numbers per head and token."""
        return self.width // self.heads

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a block's weights by GGUF's names, rows first."""
        keys = self.shared * self.head
        return {
            "attn_norm": (self.width,),
            "attn_q": (self.width, self.width),
            "attn_k": (keys, self.width),
            "attn_v": (keys, self.width),
            "attn_output": (self.width, self.width),
            "ffn_norm": (self.width,),
            "ffn_gate": (self.inner, self.width),
            "ffn_up": (self.inner, self.width),
            "ffn_down": (self.width, self.inner),
        }


Added = Callable[[int, str, Tensor], Tensor | None]
"""What is added to the output of a block's layer, from the block's number, the layer's name and its input."""


class Llama(nn.Module):
    """A frozen Llama; its copies share its weights, which are no parameters and are not in `state_dict`.

    Args:
        shape: Its sizes.
        weights: Its weights by GGUF's names.
    """

    def __init__(self, shape: LlamaShape, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.shape = shape
        wanted = {"token_embd": (shape.vocabulary, shape.width), "output_norm": (shape.width,)}
        for block in range(shape.layers):
            wanted |= {f"blk.{block}.{name}": size for name, size in shape.sizes().items()}
        for name, size in wanted.items():
            if tuple(weights[name].shape) != size:
                raise ValueError(f"{name} must have shape {size}, got {tuple(weights[name].shape)}")
            self.register_buffer(name.replace(".", "_"), weights[name], persistent=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Llama:
        return self

    def weight(self, name: str, block: int | None = None) -> Tensor:
        """A weight by its name in a block, or outside of them."""
        made: Tensor = getattr(self, name if block is None else f"blk_{block}_{name}")
        return made

    def forward(self, tokens: Tensor, added: Added) -> Tensor:
        """The logits after every token of the rows."""
        turns = self._turns(tokens.shape[1], tokens.device)
        x = self.weight("token_embd")[tokens]
        for block in range(self.shape.layers):
            x = x + self._attention(block, self._normed(x, "attn_norm", block), turns, added)
            x = x + self._feed_forward(block, self._normed(x, "ffn_norm", block), added)
        return F.linear(self._normed(x, "output_norm", None), self.weight("token_embd"))

    def _normed(self, x: Tensor, name: str, block: int | None) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.floor) * self.weight(name, block)

    def _layer(self, block: int, name: str, x: Tensor, added: Added) -> Tensor:
        more = added(block, name, x)
        out = F.linear(x, self.weight(name, block))
        return out if more is None else out + more

    def _turns(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines by which pairs of a head's numbers turn at every place."""
        half = self.shape.head // 2
        speed = self.shape.base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(length, dtype=torch.float64), speed)
        return angle.cos().float().to(device), angle.sin().float().to(device)

    def _heads(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Heads beside each other, turned by their places."""
        split = torch.unflatten(x, -1, (-1, self.shape.head)).transpose(-3, -2)
        if turns is None:
            return split
        (first, second), (cos, sin) = split.chunk(2, -1), turns
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def _attention(self, block: int, x: Tensor, turns: tuple[Tensor, Tensor], added: Added) -> Tensor:
        asked = self._heads(self._layer(block, "attn_q", x, added), turns)
        repeat = self.shape.heads // self.shape.shared
        keys, values = (
            self._heads(self._layer(block, name, x, added), turn).repeat_interleave(repeat, -3)
            for name, turn in (("attn_k", turns), ("attn_v", None))
        )
        length = x.shape[-2]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        likeness = (asked @ keys.transpose(-2, -1)) / math.sqrt(self.shape.head)
        seen = likeness.masked_fill(later, -math.inf).softmax(-1) @ values
        return self._layer(block, "attn_output", seen.transpose(-3, -2).flatten(-2), added)

    def _feed_forward(self, block: int, x: Tensor, added: Added) -> Tensor:
        inside = F.silu(self._layer(block, "ffn_gate", x, added)) * self._layer(block, "ffn_up", x, added)
        return self._layer(block, "ffn_down", inside, added)


@cache
def _read(path: Path) -> Llama:
    """The Llama of a GGUF file, its weights widened to float32; read once."""
    from gguf.quants import dequantize

    shape = LlamaShape(
        layers=field(path, "llama.block_count"),
        width=field(path, "llama.embedding_length"),
        inner=field(path, "llama.feed_forward_length"),
        heads=field(path, "llama.attention.head_count"),
        shared=field(path, "llama.attention.head_count_kv"),
        vocabulary=field(path, "llama.vocab_size"),
        base=field(path, "llama.rope.freq_base"),
        floor=field(path, "llama.attention.layer_norm_rms_epsilon"),
    )
    weights = {}
    for each in opened(path).tensors:
        rows = torch.from_numpy(np.array(dequantize(each.data, each.tensor_type), dtype=np.float32))
        name = each.name.removesuffix(".weight")
        weights[name] = _paired(rows, shape) if name.endswith(("attn_q", "attn_k")) else rows
    return Llama(shape, weights)


def _paired(rows: Tensor, shape: LlamaShape) -> Tensor:
    """Rows whose pairs stand side by side in the file, with a head's first halves before its second halves."""
    return rows.reshape(-1, shape.head // 2, 2, shape.width).transpose(1, 2).reshape(rows.shape)


class Adapted(nn.Module):
    """A frozen Llama with trained low-rank adapters of some layers in every block.

    Args:
        llama: The frozen model.
        layers: Which layers of a block are adapted, by GGUF's names.
        rank: Rows of A, columns of B.
    """

    def __init__(self, llama: Llama, layers: tuple[str, ...], rank: int) -> None:
        super().__init__()
        self.llama, self.layers, self.rank = llama, layers, rank
        self.columns = nn.ParameterDict()
        for block in range(llama.shape.layers):
            for name in layers:
                outs, ins = llama.shape.sizes()[name]
                key = f"{block}_{name}"
                self.columns[key] = nn.Parameter(torch.zeros(outs, rank))
                self.register_buffer(f"rows_{key}", signs(key, rank, ins))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits after every token of the rows."""
        logits: Tensor = self.llama(tokens, self._added)
        return logits

    def _added(self, block: int, name: str, x: Tensor) -> Tensor | None:
        if name not in self.layers:
            return None
        key = f"{block}_{name}"
        made: Tensor = F.linear(F.linear(x, getattr(self, f"rows_{key}")), self.columns[key])
        return made


def signs(key: str, rows: int, columns: int) -> Tensor:
    """Random signs over the square root of the columns; the same everywhere for a key."""
    count = rows * columns
    drawn = hashlib.shake_256(f"cepam adapter {key}".encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))[:count].reshape(rows, columns)
    return torch.from_numpy((2.0 * bits - 1.0) / math.sqrt(columns)).float()


ADAPTED = "smollm2-lora"
LAYERS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
RANK = 1


def smollm2_adapted() -> Adapted:
    """SmolLM2-135M-Instruct with adapters that change nothing yet.

    Raises:
        DataUnavailable: The model could not be had.
    """
    return Adapted(_read(smollm2()), LAYERS, RANK)
