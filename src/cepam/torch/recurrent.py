"""Recurrent layers step by step, so that the slopes of every step's gates can be had; PyTorch's own give none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from cepam.torch.uses import Place

if TYPE_CHECKING:
    from cepam.torch.recording import Recorder

States = list[Tensor]
Cell = Callable[[Tensor, Tensor, States], States]
"""From the gates of the input, the gates of the state and the state to the next state; what comes out is its first."""
Noted = Callable[[list[Tensor], list[Tensor], Place, Place | None], None]


def _gru(given: Tensor, own: Tensor, state: States) -> States:
    (before,) = state
    if given.is_cuda:
        return [torch.ops.aten._thnn_fused_gru_cell(given, own, before)[0]]
    size = before.shape[-1]
    reset, update = torch.sigmoid(given[:, : 2 * size] + own[:, : 2 * size]).chunk(2, 1)
    fresh = torch.tanh(torch.addcmul(given[:, 2 * size :], reset, own[:, 2 * size :]))
    return [torch.lerp(fresh, before, update)]


def _lstm(given: Tensor, own: Tensor, state: States) -> States:
    _, memory = state
    if given.is_cuda:
        out, memory, _ = torch.ops.aten._thnn_fused_lstm_cell(given, own, memory)
        return [out, memory]
    enter, forget, fresh, leave = (given + own).chunk(4, 1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(fresh)
    return [torch.sigmoid(leave) * torch.tanh(memory), memory]


def _tanh(given: Tensor, own: Tensor, state: States) -> States:
    return [torch.tanh(given + own)]


def _relu(given: Tensor, own: Tensor, state: States) -> States:
    return [torch.relu(given + own)]


CELLS: dict[str, Cell] = {"gru": _gru, "lstm": _lstm, "rnn_tanh": _tanh, "rnn_relu": _relu}


@dataclass(frozen=True)
class Layer:
    """One direction of one layer: where its weights stand, and what notes their uses."""

    on: Recorder
    places: list[Place]
    noted: Noted

    def run(self, cell: Cell, x: Tensor, state: States, backwards: bool) -> tuple[Tensor, States]:
        """All outputs [steps, examples, size] and the last state."""
        w_input, w_state, *biases = self.places
        b_input, b_state = biases or (None, None)
        given = F.linear(x, self.on.weight(w_input, x), None if b_input is None else self.on.weight(b_input))
        self.noted([given], [x], w_input, b_input)
        weight = self.on.weight(w_state, state[0])
        shift = None if b_state is None else self.on.weight(b_state)
        owns: list[Tensor] = []
        entered: list[Tensor] = []
        outs: list[Tensor] = []
        steps = given.unbind(0)
        for gates in reversed(steps) if backwards else steps:
            own = F.linear(state[0], weight, shift)
            entered.append(state[0])
            owns.append(own)
            state = cell(gates, own, [state[0].to(gates.dtype), *state[1:]])
            outs.append(state[0])
        self.noted(owns, entered, w_state, b_state)
        return torch.stack(outs[::-1] if backwards else outs), state


def run_layers(
    cell: Cell, x: Tensor, state: States, layers: list[Layer], directions: int,
    masked: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, States]:  # fmt: skip
    """All outputs of the last layer and the last state of every layer.

    Args:
        cell: One step.
        x: Inputs [steps, examples, size].
        state: First states [layers · directions, examples, size], one tensor for each part of the state.
        layers: The layers, both directions of one behind each other.
        directions: 1, or 2 for layers that run both ways.
        masked: Dropout between layers, or None.
    """
    ends: list[States] = []
    for at in range(0, len(layers), directions):
        x = x if masked is None or at == 0 else masked(x)
        outs = []
        for way in range(directions):
            out, end = layers[at + way].run(cell, x, [part[at + way] for part in state], way == 1)
            outs.append(out)
            ends.append(end)
        x = outs[0] if directions == 1 else torch.cat(outs, -1)
    return x, [torch.stack(list(parts)) for parts in zip(*ends)]
