"""Record-level privacy around a training loop of one's own: secret Poisson batches, each example clipped."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import Dataset, TensorDataset, default_collate

from cepam.clip import Clip
from cepam.torch.mapped import Mapped, Ways, check_layers
from cepam.torch.parameters import Update, trained_parameters

Loss = Callable[[Tensor, Any], Tensor]
Records = Dataset[Any] | Sequence[Any] | tuple[Tensor, ...]

ROUNDINGS = 2.0**-22
"""How far under the clip every example is put, relative: the bound and the mean are each rounded to float32."""


class PerExampleGradients:
    """The clipped gradient of a secret batch, for any module and loss: what a client replies for record-level privacy.

    Each record is drawn by itself, from the operating system's randomness. Its gradient is scaled down to `clip`, and
    the sum is divided by a public number. One record moves the result by at most clip / expected_batch_size. The noise
    of `cepam.flower.Private(…, update=Gradient())` with `Accounting(clipped="example", record_sampling=…)` covers it.
    Which optimizer the server uses does not matter for privacy.

    The model runs as it is. `Linear`, convolutions, `Embedding`, recurrent layers and attention are fast, with tied and
    shared weights too (bench/per_example.py). Any other operation works, and is slower.

    Args:
        model: A module that takes the inputs of a batch and gives one tensor. Only parameters with `requires_grad`
            count. Its weights may change between calls; it is not changed here.
        loss: A function of (outputs, targets) of a batch of one example that gives one number, such as
            `torch.nn.functional.cross_entropy`.
        clip: The bound on the l2 norm of one record's gradient.
        max_physical_batch_size: The most examples that are in memory at once. It does not change the result.

    Raises:
        ValueError: The clip is not l2; a layer mixes the examples of a batch or keeps what it saw (batch normalisation
            in training mode); no parameter trains.

    Guarantee:
        With one record more or less the result moves by at most clip / expected_batch_size in l2 norm, up to the
        rounding of a float32 sum. A record whose gradient or loss is not finite adds nothing. Attacked in
        tests/attacks/test_private_gradients.py: shared, tied, nested and conditional modules, state, hooks.

    Example:
        >>> private = PerExampleGradients(model, torch.nn.functional.cross_entropy, cepam.L2(1.0))
        >>> gradient = private.gradient((images, labels), expected_batch_size=64)
    """

    def __init__(self, model: nn.Module, loss: Loss, clip: Clip, *, max_physical_batch_size: int = 128) -> None:
        if not isinstance(clip, Clip) or clip.norm != "l2":
            raise ValueError(f"clip must be cepam.L2(bound): gradients are clipped by their l2 norm, got {clip!r}")
        if not callable(loss):
            raise ValueError(f"loss must be a function of (outputs, targets), got {loss!r}")
        if max_physical_batch_size < 1:
            raise ValueError(f"max_physical_batch_size must be at least 1, got {max_physical_batch_size}")
        self.model, self.loss, self.clip = model, loss, clip
        self.max_physical_batch_size = max_physical_batch_size
        self._modes: tuple[Any, ...] = ()
        self._ways = Ways()
        self._check()

    def _check(self) -> dict[str, nn.Parameter]:
        check_layers(self.model)
        return trained_parameters(self.model)

    def gradient(self, dataset: Records, expected_batch_size: float, *, records: int | None = None) -> Update:
        """The sum of clipped gradients of a fresh secret batch over the expected batch size, by parameter name.

        Args:
            dataset: The records: pairs (inputs, targets), as a map-style data set, a sequence, or one tensor each.
                Inputs may be a tensor, or a tuple or dict of tensors that the model takes as its arguments.
            expected_batch_size: How many records are drawn on average: a public number, the one of the account.
            records: The public number of records, the one of the account (default: `len(dataset)`, where that is
                public). Each record is drawn with the probability expected_batch_size / records.

        Returns:
            A tensor in float32 for each parameter that trains. Zeros where no record was drawn.

        Raises:
            ValueError: The probability is above 1, the records are NumPy arrays, or the model cannot be run one example
                at a time.
        """
        items = _items(dataset)
        held = len(items) if records is None else records
        if not (math.isfinite(expected_batch_size) and 0.0 < expected_batch_size <= held):
            raise ValueError(f"expected_batch_size must lie in (0, {held}], the records, got {expected_batch_size!r}")
        total = self.summed(items, _drawn(len(items), expected_batch_size / held))
        return {name: part / expected_batch_size for name, part in total.items()}

    def summed(self, dataset: Records, chosen: Sequence[int]) -> Update:
        """The sum of the clipped gradients of these records, by parameter name: what `gradient` divides.

        For batches that are drawn in another way, such as the slices of correlated noise. The result is private only
        with noise for a sensitivity of `clip`, and only if the choice is what the account says.

        Args:
            dataset: Gives the example at a place, with its target.
            chosen: Places of the records.

        Returns:
            A tensor per trained parameter.
        """
        items = _items(dataset)
        trained = self._check()
        weights = torch.cat([p.detach().flatten().float() for p in trained.values()])
        bounds = torch.full((1,), self.clip.bound * (1.0 - ROUNDINGS), device=weights.device)
        total, passes = torch.zeros_like(weights), None
        for inputs, targets in self._batches(items, chosen, weights.device):
            passes = self._passes(inputs, targets, weights.device.type) if passes is None else passes
            keep = torch.ones((1, len(tree_leaves(inputs)[0])), dtype=torch.bool, device=weights.device)
            with torch.no_grad():
                total += passes.summed(weights, inputs, targets, keep, bounds)[0][0]
        pieces = torch.split(total, [p.numel() for p in trained.values()])
        return {name: piece.view(p.shape) for piece, (name, p) in zip(pieces, trained.items())}

    def _passes(self, inputs: Any, targets: Any, device: str) -> Mapped:
        """The passes of the model as it is now; what was found out about it before is not found out again."""
        made = Mapped(self.model, self._loss_of_one, device, own_types=True)
        modes = device, *((name, layer.training) for name, layer in self.model.named_modules()), *made.named
        if modes != self._modes:
            made.probe(*tree_map(lambda x: x[:2], (inputs, targets)))
            self._modes, self._ways = modes, made.ways
        made.ways = self._ways
        return made

    def _loss_of_one(self, output: Tensor, target: Any) -> Tensor:
        made = torch.as_tensor(self.loss(output[None], tree_map(lambda x: x[None], target)))
        if made.numel() != 1:
            raise ValueError(f"loss must give one number for a batch of one, got shape {tuple(made.shape)}")
        return made.reshape(())

    def _batches(self, items: Any, chosen: Sequence[int], device: torch.device) -> Iterator[tuple[Any, Any]]:
        """The records in batches of one shape each, on the model's device."""
        for at in range(0, len(chosen), self.max_physical_batch_size):
            part = list(chosen[at : at + self.max_physical_batch_size])
            if isinstance(items, TensorDataset):
                found: list[Any] = [items[torch.tensor(part)]]
            else:
                alike: dict[Any, list[Any]] = {}
                for place in part:
                    alike.setdefault(_shapes(items[place]), []).append(items[place])
                found = [default_collate(group) for group in alike.values()]
            for pair in found:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise ValueError("a record must be a pair (inputs, targets)")
                yield tree_map(lambda x: x.to(device), tuple(pair))


def _drawn(records: int, sampling_rate: float) -> list[int]:
    """Each record by itself with this probability, to 2^-64, from the operating system's randomness."""
    if sampling_rate >= 1.0:
        return list(range(records))
    words = np.frombuffer(secrets.token_bytes(8 * records), dtype=np.uint64)
    return np.flatnonzero(words < np.uint64(int(sampling_rate * 2.0**64))).tolist()


def _items(dataset: Any) -> Any:
    """The records by number."""
    if isinstance(dataset, tuple) and any(isinstance(each, np.ndarray) for each in dataset):
        raise ValueError("inputs and targets must be tensors, got NumPy arrays: torch.from_numpy(x).float() makes one")
    pair = isinstance(dataset, tuple | list) and len(dataset) == 2 and all(isinstance(x, Tensor) for x in dataset)
    return TensorDataset(*dataset) if pair else dataset


def _shapes(record: Any) -> tuple[Any, ...]:
    """What tells whether records can be in one batch."""
    leaves, structure = tree_flatten(record)
    return str(structure), *(tuple(x.shape) if isinstance(x, Tensor) else np.shape(x) for x in leaves)
