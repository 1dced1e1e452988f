"""A model on a data set: sums of gradients and scores for rows of weights, on the CPU or a GPU, in PyTorch.

Rows are clients, seeds, or both. On the CPU they are dealt to one thread a core, each computing by itself, so that a
row's bits depend neither on the other rows nor on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import AUC, Doubles, Floats, Index, LinearHead, Objective, Scores
from cepam.fl.models.layers import Convolution, Dense, Layer, layers_of
from cepam.kernels.dispatch import cores
from cepam.torch.mapped import Mapped, drawing_from
from cepam.torch.uses import example_factors, whole

Taken = tuple[Dense | Convolution, Tensor, Tensor]


class Passes(Protocol):
    """The gradients of a model."""

    @property
    def draws(self) -> bool:
        """Whether a training pass draws at random."""

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """The answers to all examples at one vector of weights."""

    def each(self, weights: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Every example's gradient at the weights of its own row, and its loss."""

    def summed(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor | None, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows of sums of gradients and of losses at one vector of weights.

        `keep` (rows, examples a row) says which examples count; x and labels hold them row behind row. With `bounds`
        each gradient is first scaled down to its row's. `known`: squared norms of x, or None.
        """


class Layered:
    """Known layers: norms from what goes in and the slopes of what comes out, in one pass forward and one back."""

    draws = False

    def __init__(self, layers: list[Layer], objective: Objective) -> None:
        self.layers, self.objective = layers, objective
        flat = isinstance(layers[-1], Dense) and all(isinstance(each, nn.Flatten) for each in layers[:-1])
        self.linear = flat and objective.classifies

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.Module) else layer.after(layer.shared(x, weights))
        return x

    def _slopes(self, weights: Tensor, x: Tensor, labels: Tensor, own: bool) -> tuple[list[Taken], Tensor]:
        """For each layer with weights: itself, what went in, the slope of what came out; and the losses."""
        if self.linear:
            return self._linear_slope(weights, x.flatten(1), labels, own)
        taken: list[tuple[Dense | Convolution, Tensor]] = []
        outs: list[Tensor] = []
        with torch.enable_grad():
            for layer in self.layers:
                if isinstance(layer, nn.Module):
                    x = layer(x)
                    continue
                out = layer.own(x, weights) if own else layer.shared(x, weights)
                taken.append((layer, x.detach()))
                outs.append(out if out.requires_grad else out.requires_grad_())
                x = layer.after(out)
            losses = self.objective.losses(x, labels)
            slopes = torch.autograd.grad(losses.sum(), outs)
        return [(layer, entered, slope) for (layer, entered), slope in zip(taken, slopes)], losses.detach()

    def _linear_slope(self, weights: Tensor, x: Tensor, labels: Tensor, own: bool) -> tuple[list[Taken], Tensor]:
        """What `_slopes` gives for one dense layer: probabilities less the right answer, without a graph to walk
        back."""
        layer = self.layers[-1]
        assert isinstance(layer, Dense)
        logs = (layer.own if own else layer.shared)(x, weights).log_softmax(1)
        right = labels[:, None]
        losses = -logs.gather(1, right)[:, 0]
        slope = logs.exp_()
        slope.scatter_add_(1, right, torch.full_like(right, -1.0, dtype=slope.dtype))
        return [(layer, x, slope)], losses

    def each(self, weights: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        taken, losses = self._slopes(weights, x, labels, own=True)
        return torch.cat([layer.each(entered, slope) for layer, entered, slope in taken], 1), losses

    def summed(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor | None, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        taken, losses = self._slopes(weights, x, labels, own=False)
        held: list[Taken] = []
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for layer, entered, slope in taken:
            norms, first, second = layer.measured(entered, slope, known)
            held.append((layer, first, second))
            total, known = total + norms, None
        factors = keep.float()
        if bounds is not None:
            factors = factors * example_factors(total, losses, bounds.repeat_interleave(keep.shape[1])).view_as(keep)
        good = (factors > 0).flatten()
        if not bool(good.all()):
            held = [(layer, whole(x, good), whole(slope, good)) for layer, x, slope in held]
            losses = whole(losses, good)
        sums = [layer.summed(x, slope, factors) for layer, x, slope in held]
        return torch.cat(sums, 1), losses.view_as(keep).sum(1)


MANY = 8
"""From so many examples on a row goes through the network by itself; below, rows with their own weights go together."""
ROWS_TOGETHER = {"cpu": 32, "cuda": 4096}
EXAMPLES_AT_ONCE = {"cpu": 64, "cuda": 8192}
DENSE_AT_ONCE = {"cpu": 1024, "cuda": 65_536}
"""Examples a pass takes at once: in a convolution each has a gradient of its own in memory, in a dense layer none."""
SCORED_AT_ONCE = {"cpu": 100, "cuda": 10_000}
DENSE_SCORED_AT_ONCE = {"cpu": 1000, "cuda": 10_000}
NUMBERS_AT_ONCE = 1 << 24
"""Numbers in the answers to the examples that a pass takes at once: a language model has one per token and word."""
BYTES_PER_NUMBER = 128
"""On a GPU there is one such number for so many bytes of its memory."""
DENSE_THREADS = 4
"""Threads that share out what has no convolution. PyTorch gives the interpreter away at every operation; where these
are short, more threads wait for it longer than they work (bench/threads.py)."""


def steady() -> AbstractContextManager[None]:
    """Convolutions in full float32, by algorithms that give the same bits every time: a resumed run repeats itself."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    return flags


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads with one thread of PyTorch's each: they sleep, where a parallel region would spin."""
    return ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1))


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def shared_out(
    work: Callable[[Any], None], jobs: Iterable[Any], device: str, in_turn: bool = False, most: int | None = None
) -> None:
    """Runs work over the jobs, without gradients: on the CPU side by side, a thread a core or so many at most; on a GPU
    or `in_turn` one by one."""

    def quietly(job: Any) -> None:
        with torch.no_grad():
            work(job)

    if device == "cpu" and not in_turn:
        list(_pool(min(cores(), most or cores())).map(quietly, jobs))
        return
    with steady():
        for job in jobs:
            quietly(job)


class TorchNetwork:
    """A model lowered onto a data set; takes and gives NumPy arrays, or tensors of its device."""

    def __init__(self, module: nn.Module, data: Dataset, device: str, objective: Objective | None = None) -> None:
        self.device, self.data, self.objective = device, data, objective or Objective()
        self.train = self._put(data.train_inputs), self._put(data.train_labels)
        self.test = self._put(data.test_inputs), self._put(data.test_labels)
        layers = layers_of(module, data.shape)
        self.passes: Passes = self._mapped(module) if layers is None else Layered(layers, self.objective)
        self.draws = self.passes.draws
        first = next((layer for layer in layers or [] if not isinstance(layer, nn.Flatten)), None)
        convolutions = layers is None or any(isinstance(layer, Convolution) for layer in layers)
        most = self._most_at_once(module)
        self.at_once = min(most, (EXAMPLES_AT_ONCE if convolutions else DENSE_AT_ONCE)[device])
        self.scored = min(most, (SCORED_AT_ONCE if convolutions else DENSE_SCORED_AT_ONCE)[device])
        self.rows_together = min(most, ROWS_TOGETHER[device])
        self.most_threads = None if convolutions else DENSE_THREADS
        self.ranks = self.objective.classifies and data.classes == 2 and AUC not in self.objective.metrics
        self.known = self._input_squares() if isinstance(first, Dense) else None

    def _mapped(self, module: nn.Module) -> Mapped:
        made = Mapped(module.to(self.device), self.objective.loss_of_one, self.device)
        few = slice(0, 2)
        made.probe(self._images(self.train[0][few]), self.train[1][few])
        return made

    def _most_at_once(self, module: nn.Module) -> int:
        """How many examples' answers stay within NUMBERS_AT_ONCE."""
        weights = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad]).to(self.device)
        found: list[int] = []
        first = self._images(self.test[0][:1])
        shared_out(lambda row: found.append(self.passes.logits(row, first).numel()), [weights], self.device)
        numbers = NUMBERS_AT_ONCE
        if self.device == "cuda":
            numbers = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory // BYTES_PER_NUMBER
        return max(1, numbers // max(1, found[0]))

    def _put(self, array: Any) -> Tensor:
        if isinstance(array, Tensor):
            return array
        # PyTorch warns of arrays that cannot be written to, such as mapped data sets: those are copied.
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self.device)

    def _zeros(self, *shape: int) -> Tensor:
        if self.device != "cpu":
            return torch.zeros(shape, device=self.device)
        # From NumPy: a parallel region of PyTorch's in this thread would spin beside the threads that work.
        return torch.from_numpy(np.zeros(shape, np.float32))

    def _images(self, inputs: Tensor) -> Tensor:
        """The inputs as the module reads them: whole numbers as they are, all else as float32."""
        if self.data.tokens:
            return inputs.long().reshape(-1, *self.data.shape)
        scaled = inputs.to(torch.float32)
        if (self.data.scale, self.data.shift) != (1.0, 0.0):
            scaled = scaled * self.data.scale + self.data.shift
        return scaled.reshape(-1, *self.data.shape)

    def inputs(self, index: Index) -> Floats:
        """The inputs of these training examples as the first layer takes them, one row each."""
        rows: Floats = self._images(self.train[0][self._put(index)]).flatten(1).cpu().numpy()
        return rows

    @property
    def head(self) -> LinearHead | None:
        """The one linear layer that all of the model is; None where it is more."""
        layers = self.passes.layers if isinstance(self.passes, Layered) else []
        dense = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
        if len(dense) != 1 or not isinstance(dense[0], Dense):
            return None
        return LinearHead(dense[0].outs, dense[0].ins, dense[0].bias)

    def _input_squares(self) -> Tensor:
        """The squared norm of every training record in float64: where the first layer is dense, half of each clip."""
        made = torch.empty(len(self.train[1]), dtype=torch.float64, device=self.device)
        for at in range(0, len(made), 1024):
            flat = self._images(self.train[0][at : at + 1024]).flatten(1)
            made[at : at + 1024] = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64).square()
        return made

    def summed_gradients(
        self, weights: Any, of: Index, index: Index, count: Index, bounds: Floats | None = None,
        seeds: Index | None = None, squares: Doubles | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """As `Network` says; rows come back as tensors of this device where the weights are tensors.

        With `squares` the clip takes squares[r, i] for the squared norm of the i-th example's input (one dense layer).
        """
        vectors = self._put(weights)
        sums, losses = self._zeros(len(of), vectors.shape[1]), self._zeros(len(of))
        # A row is dealt by its own count alone, so that its sum does not depend on the other rows.
        one_by_one = self.draws or squares is not None or (isinstance(self.passes, Mapped) and not self.passes.together)
        few = np.flatnonzero((count > 0) & (count < MANY) & (not one_by_one))
        many = np.flatnonzero((count >= MANY) | (one_by_one & (count > 0)))
        limits = None if bounds is None else self._put(bounds)

        def together(rows: Index) -> None:
            self._own_weights(vectors, of, index, count, limits, rows, sums, losses)

        def alone(rows: Index) -> None:
            mine: Any = slice(None) if len(rows) == len(of) else rows  # a GPU would be sent the numbers of all rows
            sums[mine], losses[mine] = self._shared_weights(vectors[of[rows[0]]], index[rows], count[rows],
                                                            None if limits is None else limits[mine],
                                                            None if squares is None else squares[rows])  # fmt: skip

        def drawing(row: int) -> None:
            with drawing_from(None if seeds is None else int(seeds[row]), self.device):
                alone(np.array([row]))

        groups = _in_groups(few, self.rows_together)
        shared_out(together, groups, self.device, most=self.most_threads)
        if self.draws:  # one generator for the whole process: rows go one after the other, each from its own seed
            shared_out(drawing, many, self.device, in_turn=True)
        else:
            shared_out(alone, self._blocks(of, many), self.device, most=self.most_threads)
        return (sums, losses) if isinstance(weights, Tensor) else (sums.cpu().numpy(), losses.cpu().numpy())

    def _blocks(self, of: Index, rows: Index) -> list[Index]:
        """Rows that go through the network at once: each by itself, on a GPU as many of those that share weights as
        fit."""
        if self.device == "cpu":
            return _in_groups(rows, 1)
        same = [rows[of[rows] == one] for one in np.unique(of[rows])]
        return [group for each in same for group in _in_groups(each, self.at_once)]

    def _own_weights(
        self, vectors: Tensor, of: Index, index: Index, count: Index, limits: Tensor | None, rows: Index, sums: Tensor,
        losses: Tensor,
    ) -> None:  # fmt: skip
        """Adds the gradients of rows with few examples, the first of every row at once, then the second, and so on."""
        for step in range(int(count[rows].max())):
            alive = rows[count[rows] > step]
            which = self._put(index[alive, step])
            slopes, lost = self.passes.each(
                vectors[of[alive]], self._images(self.train[0][which]), self.train[1][which]
            )
            if limits is not None:
                squares = torch.linalg.vector_norm(slopes, dim=1, dtype=torch.float64).square()
                factors = example_factors(squares, lost, limits[alive])
                slopes = torch.where(factors[:, None] > 0, slopes * factors[:, None], 0.0)
                lost = torch.where(factors > 0, lost, 0.0)
            sums[alive] += slopes
            losses[alive] += lost

    def _shared_weights(
        self, vector: Tensor, index: Index, count: Index, limits: Tensor | None, squares: Doubles | None = None
    ) -> tuple[Tensor, Tensor]:
        sums, losses = vector.new_zeros((len(index), len(vector))), vector.new_zeros(len(index))
        per = max(1, self.at_once // len(index))
        for at in range(0, int(count.max()), per):
            last = min(at + per, int(count.max()))
            which = self._put(index[:, at:last])
            keep = torch.arange(at, last, device=self.device) < self._put(count)[:, None]
            flat = which.flatten()
            known = None if self.known is None else self.known[flat]
            part, lost = self.passes.summed(
                vector, self._images(self.train[0].index_select(0, flat)), self.train[1][flat], keep, limits,
                known if squares is None else self._put(squares[:, at:last].reshape(-1)),
            )  # fmt: skip
            sums += part
            losses += lost
        return sums, losses

    def evaluate(self, weights: Any, index: Index | None = None, test: bool = False) -> Scores:
        """As `Network` says."""
        inputs, labels = self.test if index is None or test else self.train
        where = None if index is None else self._put(index)
        vectors, total = self._put(weights), len(labels) if where is None else len(where)
        at_once = self.scored
        jobs = [(row, at) for at in range(0, total, at_once) for row in range(len(vectors))]
        found: list[dict[str, float]] = [{}] * len(jobs)
        ranked = self.ranks and index is None
        margins = np.zeros((len(vectors), total if ranked else 0))

        def work(job: int) -> None:
            row, at = jobs[job]
            cut = slice(at, at + at_once)
            images, answers = (x[cut] if where is None else x[where[cut]] for x in (inputs, labels))
            logits = self.passes.logits(vectors[row], self._images(images))
            if ranked:
                margins[row, cut] = (logits[:, 1] - logits[:, 0]).double().cpu().numpy()
            sums = {"loss": self.objective.losses(logits, answers).double().sum()}
            found[job] = {name: float(x) for name, x in (sums | self.objective.scores(logits, answers)).items()}

        shared_out(work, range(len(jobs)), self.device, most=self.most_threads)
        means = {
            name: np.array([each[name] for each in found]).reshape(-1, len(vectors)).sum(0) / total for name in found[0]
        }
        if ranked:
            means = {"accuracy": means["accuracy"], AUC: areas(margins, labels.cpu().numpy()), **means}
        return Scores(means.pop("loss"), means)


def _in_groups(rows: Index, most: int) -> list[Index]:
    return [rows[at : at + most] for at in range(0, len(rows), most)]


def areas(margins: Doubles, labels: Index) -> Doubles:
    """The area under the ROC curve of each row of margins: the chance that an example of class 1 ranks above one of 0.

    Args:
        margins: Larger where class 1 is likelier, one row per vector of weights.
        labels: 0 or 1.

    Returns:
        One number per row; ties count half, and a row is NaN where a class has no example.
    """
    ones, zeros = int(labels.sum()), int((1 - labels).sum())
    if not ones or not zeros:
        return np.full(len(margins), np.nan)
    ranks = rankdata(margins, axis=1)
    sums = ranks[:, labels == 1].sum(1)
    return np.asarray((sums - ones * (ones + 1) / 2) / (ones * zeros))
