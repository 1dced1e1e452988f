"""Per-example gradients of any module: every example passes as a batch of one."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from cepam.fl.models.objective import Objective
from cepam.fl.models.passes import example_factors, whole

# Where an operation has no batching rule of its own, PyTorch goes through the batch by itself: slower, and right.
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")


@contextmanager
def drawing_from(seed: int | None, device: str) -> Iterator[None]:
    """Nothing; what modules draw inside comes from the seed, and what is drawn afterwards is as if nothing was."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device == "cuda" else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def _state(device: str) -> Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


OWN = frozenset(("_parameters", "_buffers", "_modules"))
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def state_of(module: nn.Module) -> dict[str, Any]:
    """What a module and its layers hold as plain attributes, by name; what changes in place is copied."""
    return {
        ".".join(filter(None, (path, name))): _copied(value)
        for path, layer in module.named_modules()
        for name, value in vars(layer).items()
        if name not in OWN
    }


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value.detach() if isinstance(value, Tensor) else value)
    except Exception:  # what cannot be copied, such as a lock or an open file, is compared by itself
        return value


def same(one: Any, other: Any) -> bool:
    """Whether two attributes hold the same, arrays and tensors by their numbers, other objects by theirs."""
    return _same(one, other, set())


def _same(one: Any, other: Any, met: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in met:
        return True
    met.add((id(one), id(other)))
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_same(one[key], other[key], met) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(_same(a, b, met) for a, b in zip(one, other))
    if isinstance(one, weakref.ref):
        return _same(one(), other(), met)
    if isinstance(one, CODE) or (not hasattr(one, "__dict__") and "__eq__" not in _members(type(one))):
        return True  # nothing to compare: `_check_answers` sees what follows from it
    if hasattr(one, "__dict__"):
        return _same(vars(one), vars(other), met)
    return bool(one == other) or bool(one != one and other != other)


def _members(kind: type) -> set[str]:
    """What a class defines beyond `object`."""
    return {name for each in kind.__mro__[:-1] for name in vars(each)}


def _near(wanted: Tensor, found: Tensor) -> bool:
    most = 1e-4 * float(torch.where(wanted.isfinite(), wanted.abs(), 0.0).max()) + 1e-9
    return torch.allclose(found, wanted, rtol=1e-3, atol=most, equal_nan=True)


class Mapped:
    """Any module: mapped by `torch.func` where that gives the same as one by one, else one by one.

    A training pass sees the module as it was built, dropout at work, each example with draws of its own; answers for
    evaluation come from the module in `eval` mode. `probe` finds out whether the module draws and can be mapped.
    """

    def __init__(self, module: nn.Module, objective: Objective, device: str) -> None:
        self.module, self.objective, self.device = module, objective, device
        self.copies = threading.local()
        self.named = [(name, p.shape, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
        self.together, self.draws = True, False

    def _call(self, weights: Tensor, x: Tensor, training: bool) -> Tensor:
        pieces = torch.split(weights, [size for _, _, size in self.named])
        named = {name: piece.view(shape) for piece, (name, shape, _) in zip(pieces, self.named)}
        # The call swaps the module's weights while it runs, so every thread needs modules of its own.
        if not hasattr(self.copies, "modules"):
            self.copies.modules = copy.deepcopy(self.module).eval(), copy.deepcopy(self.module)
        answers = functional_call(self.copies.modules[training], named, (x,))
        if not isinstance(answers, Tensor):
            raise ValueError(
                f"a model must give one tensor, got {type(answers).__name__}: wrap it in a module of yours"
            )
        return answers

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        return self._call(weights, x, training=False)

    def _one(self, weights: Tensor, x: Tensor, label: Tensor) -> Tensor:
        return self.objective.loss_of_one(self._call(weights, x[None], training=True)[0], label)

    def _alone(self, weights: Tensor, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        made: Any = grad_and_value(self._one)(weights, x, label)
        return made[0], made[1]

    def _mapped(self, weights: Tensor, x: Tensor, labels: Tensor, own: bool) -> tuple[Tensor, Tensor]:
        """Every example's gradient and loss at once, at weights of its own or at one vector."""
        over = vmap(grad_and_value(self._one), in_dims=(0 if own else None, 0, 0), randomness="different")
        made: Any = over(weights, x, labels)
        return made[0], made[1]

    def each(self, weights: Tensor, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.together:
            return self._mapped(weights, x, labels, own=True)
        made = [self._alone(*one) for one in zip(weights, x, labels)]
        return torch.stack([slope for slope, _ in made]), torch.stack([loss for _, loss in made])

    def summed(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, bounds: Tensor | None, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        limits = None if bounds is None else bounds.repeat_interleave(keep.shape[1])
        if not self.together:
            return self._summed_alone(weights, x, labels, keep, limits)
        each, losses = self._mapped(weights, x, labels, own=False)
        factors = keep.float()
        if limits is not None:
            squares = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64).square()
            factors = factors * example_factors(squares, losses, limits).view_as(keep)
        good = (factors > 0).flatten()
        rows = torch.unflatten(whole(each, good), 0, tuple(keep.shape))
        return (factors[:, None, :] @ rows)[:, 0], whole(losses, good).view_as(keep).sum(1)

    def _summed_alone(
        self, weights: Tensor, x: Tensor, labels: Tensor, keep: Tensor, limits: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `summed`, with one example's gradient in memory at a time."""
        sums = weights.new_zeros((len(keep), len(weights)))
        losses = weights.new_zeros(len(keep))
        for place in keep.flatten().nonzero()[:, 0].tolist():
            slope, loss = self._alone(weights, x[place], labels[place])
            factor = torch.ones((), device=weights.device)
            if limits is not None:
                square = torch.linalg.vector_norm(slope, dtype=torch.float64).square()
                factor = example_factors(square, loss, limits[place])
            if bool(factor > 0):
                sums[place // keep.shape[1]] += factor * slope
                losses[place // keep.shape[1]] += loss
        return sums, losses

    def probe(self, x: Tensor, labels: Tensor) -> None:
        """Nothing; `draws` and `together` are known. Raises where the module keeps what it saw, or cannot take these.

        Guarantee: gradients are those of plain autograd, one example at a time (tests/fl/models/test_modules.py).
        """
        weights = torch.cat([p.detach().flatten().float() for p in self.module.parameters() if p.requires_grad])
        with drawing_from(0, self.device):
            before = _state(self.device)
            try:
                with torch.no_grad():
                    self._call(weights, x[:1], training=True)
                self._check_buffers()
                self._check_state(weights, x)
                self._check_answers(weights, x, labels)
                made = [self._alone(weights, *one) for one in zip(x, labels)]
            except (RuntimeError, TypeError, IndexError) as problem:
                raise ValueError(
                    f"the model does not take an example of shape {tuple(x.shape[1:])} ({x.dtype}) with a target of "
                    f"shape {tuple(labels.shape[1:])} ({labels.dtype}): {str(problem).partition(chr(10))[0]}"
                ) from problem
            self.draws = not torch.equal(before, _state(self.device))
            try:
                slopes, _ = self._mapped(weights, x, labels, own=False)
            except (RuntimeError, ValueError, NotImplementedError):
                self.together = False
                return
        alone = torch.stack([slope for slope, _ in made])
        self.together = self.draws or _near(alone, slopes)

    def _check_answers(self, weights: Tensor, x: Tensor, labels: Tensor) -> None:
        """Nothing; raises where an example's gradient is not that of plain autograd, whatever went through before."""
        found = []
        for place in (0, 0, -1, 0):
            with drawing_from(1, self.device):
                found.append(self._alone(weights, x[place], labels[place])[0])
        before, _, _, after = found
        if not (_near(before, found[1]) and _near(before, after)):
            raise ValueError(
                "the model's gradient for an example changes after another example: it keeps data outside the weights, "
                "without clip or noise, or draws from a generator other than torch's own; make forward depend on its "
                "input, the weights and torch's generator alone"
            )
        if not _near(before, self._plain(x[0], labels[0])):
            raise ValueError(
                "the model's gradient is another by torch.func than by plain autograd: a hook or a forward of a single "
                "object reaches past its own weights; define layers as classes, without hooks"
            )

    def _plain(self, x: Tensor, label: Tensor) -> Tensor:
        """The gradient of one example by plain autograd, of the module itself at its own weights."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        with drawing_from(1, self.device), torch.enable_grad():
            loss = self.objective.loss_of_one(self.module(x[None])[0], label)
            slopes = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        return torch.cat([slope.flatten().float() for slope in slopes])

    def _check_state(self, weights: Tensor, x: Tensor) -> None:
        """Nothing; raises where a pass leaves anything in the module, or where what it left depends on the example.

        What the first pass makes and keeps, whatever it saw, such as a table of positions, is allowed.
        """
        pieces = torch.split(weights, [size for _, _, size in self.named])
        named = {name: piece.view(shape) for piece, (name, shape, _) in zip(pieces, self.named)}

        def after(examples: Tensor) -> list[dict[str, Any]]:
            module, found = copy.deepcopy(self.module), []
            for one in examples:
                functional_call(module, named, (one[None],))
                found.append(state_of(module))
            return found

        with torch.no_grad():
            first, again = after(torch.stack((x[0], x[-1])))
            (other,) = after(x[-1:])
        for seen in (again, other):
            changed = [name for name in {**first, **seen} if not same(first.get(name), seen.get(name))]
            if changed:
                raise ValueError(
                    f"attribute {min(changed)} of the model changes as it is called: it would keep data outside the "
                    "weights, without clip or noise; make forward depend on its input and the weights alone"
                )

    def _check_buffers(self) -> None:
        """Nothing; raises where a pass has written to a buffer: it would carry data past the clip and the noise."""
        mine = dict(self.copies.modules[True].named_buffers())
        for name, held in self.module.named_buffers():
            if not torch.equal(held, mine[name]):
                raise ValueError(
                    f"buffer {name} changes as the model trains: it would keep data outside the weights, "
                    "without noise; use a layer that keeps nothing, such as nn.GroupNorm"
                )
