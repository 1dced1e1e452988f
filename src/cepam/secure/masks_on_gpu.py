"""The loops of `masks` for tensors on a GPU: the same words, whatever lies there. Imported only for such tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from cepam.kernels.model.plan import Plan
from cepam.kernels.triton.backend import check_device
from cepam.kernels.triton.masks import add_masks, add_noise, add_packed, pack_top_bits
from cepam.kernels.triton.plan import device_keys, device_plan, launching_on

_LANES = 128
_WORDS = 1024
"""Coordinates, or words, of a program that packs."""


def noised(plan: Plan, update: Any, key: bytes) -> Any:
    """The update plus noise as multiples of the public grid, int64, on the update's device.

    Guarantee: the integers of the CPU (tests/identity/test_triton_masks.py).
    """
    held = update.detach().contiguous()
    out, on = torch.empty(len(held), dtype=torch.int64, device=held.device), device_plan(plan, str(held.device))
    with launching_on(held.device):
        add_noise[(_programs(len(held), 8 * _LANES),)](
            held.view(torch.float32), int(held.dtype == torch.float64), on.draws(device_keys([key], str(held.device))),
            out, len(held), lanes=_LANES, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def packed(multiples: Any, gain: int, bits: int, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32]) -> bytes:
    """The top bits of gain times the multiples plus the masks, packed into 32-bit words."""
    # The lower half of each 64-bit product.
    words = (multiples * gain).view(torch.int32)[::2].contiguous()
    out = words.new_empty(-(-len(words) * bits // 32))
    with launching_on(words.device):
        _mask(words, keys, signs)
        pack_top_bits[(_programs(len(out), _WORDS),)](words, len(words), bits, out, len(out), lanes=_WORDS)
    sent: bytes = out.cpu().numpy().astype("<i4", copy=False).tobytes()
    return sent


def unmasked(
    messages: Sequence[bytes], count: int, bits: int, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32],
    device: str,
) -> Any:  # fmt: skip
    """The sum of the messages' numbers at the top of each word, plus the masks, as int32 on the device."""
    check_device(device)
    row = -(-count * bits // 32) + 1
    rows = np.zeros((len(messages), 4 * row), dtype=np.uint8)
    for mine, message in zip(rows, messages):
        mine[: len(message)] = np.frombuffer(message, dtype=np.uint8)
    held = torch.from_numpy(rows.view("<i4")).to(device)
    words = torch.zeros(count, dtype=torch.int32, device=device)
    with launching_on(device):
        add_packed[(_programs(count, _WORDS),)](held, row, len(messages), bits, words, count, lanes=_WORDS)
        _mask(words, keys, signs)
    return words


def _mask(words: Any, keys: npt.NDArray[np.uint32], signs: npt.NDArray[np.uint32]) -> None:
    if len(keys):
        on = [torch.from_numpy(part.view(np.int32)).to(words.device) for part in (keys, signs)]
        add_masks[(_programs(len(words), 16 * _LANES),)](*on, len(keys), words, len(words), lanes=_LANES)


def _programs(count: int, each: int) -> int:
    return int(triton.cdiv(count, each))
