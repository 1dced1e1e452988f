"""Per-example gradients of any module, clipped and summed: every example passes as a batch of one.

Three ways, the first that gives what one example at a time gives: recorded (`recording.py`), where no example's
gradient of a large weight is written down; mapped by `torch.func`; one by one.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cepam.torch.recording import Apart, Recorder
from cepam.torch.uses import Each, Place, Uses, example_factors, whole

# Where an operation has no batching rule of its own, PyTorch goes through the batch by itself: slower, and right.
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")

HALF_TOLERANCE = 0.1
"""How far two ways of one gradient may differ where it is computed in half precision, relative to its numbers."""

KINK_TOLERANCE = 0.02
"""How far each parameter's gradient of a recorded pass may be off in norm: rounding decides some of many ReLUs."""

APART = 1e-4
"""How far an example's gradient may change with the others of its batch: those of one size are computed alike."""

_SAID: set[str] = set()


@contextmanager
def drawing_from(seed: int | None, device: str) -> Iterator[None]:
    """Let what modules draw inside come from the seed; what is drawn afterwards is as if nothing was."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device == "cuda" else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def _state(device: str) -> Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def check_layers(module: nn.Module) -> None:
    """Raise where a layer mixes the examples of a batch, or keeps what it saw of them."""
    norms, instances = nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm
    for name, layer in module.named_modules():
        if isinstance(layer, norms) and not isinstance(layer, instances) and layer.training:
            raise ValueError(
                f"layer {name or 'itself'} is {type(layer).__name__}: it mixes a batch's examples, so no clip bounds "
                "what one of them adds, and keeps running means outside the weights; use "
                f"nn.GroupNorm(groups, {layer.num_features}) instead"
            )
        if isinstance(layer, instances) and layer.track_running_stats and layer.training:
            raise ValueError(f"layer {name} keeps running means of the data: set track_running_stats=False")


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


def _near(wanted: Tensor, found: Tensor, relative: float = 1e-3) -> bool:
    most = 0.1 * relative * float(torch.where(wanted.isfinite(), wanted.abs(), 0.0).max()) + 1e-9
    return torch.allclose(found, wanted, rtol=relative, atol=most, equal_nan=True)


def near_by_parameter(wanted: Tensor, found: Tensor, sizes: list[int]) -> bool:
    """Whether each parameter's gradient, of each example, is near in norm: no parameter's use was missed."""
    for one, other in zip(torch.split(wanted, sizes, dim=1), torch.split(found, sizes, dim=1)):
        off, norm = (torch.linalg.vector_norm(each, dim=1, dtype=torch.float64) for each in (other - one, one))
        if not bool((off <= KINK_TOLERANCE * norm).all()):
            return False
    return True


def _difference(wanted: Tensor, found: Tensor) -> str:
    most = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    return f"gradients of all examples at once differ by {most:.1%} from those of one example at a time"


class _Types(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the types that operations give: autocast inside a module shows only there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.given.update(x.dtype for x in tree_leaves(made) if isinstance(x, Tensor) and x.is_floating_point())
        return made

    @property
    def half(self) -> bool:
        """Whether anything had less than 32 bits."""
        return any(kind.itemsize < 4 for kind in self.given)


Inputs = Any
"""A tensor, or a tuple, list or dict of tensors: the arguments of the module, each with the examples first."""


def _first(inputs: Inputs, place: int) -> Inputs:
    """One example of the inputs, as a batch of one."""
    return tree_map(lambda x: x[place : place + 1] if place >= 0 else x[place:], inputs)


def _arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs as a module is called with them."""
    return (tuple(x), {}) if isinstance(x, tuple | list) else ((), x) if isinstance(x, dict) else ((x,), {})


def _one_tensor(answers: Any) -> Tensor:
    if not isinstance(answers, Tensor):
        raise ValueError(f"a model must give one tensor, got {type(answers).__name__}: wrap it in a module of yours")
    return answers


def _gradient(params: list[nn.Parameter], loss: Tensor) -> Tensor:
    """The gradient by `backward`, as a training loop takes it, as one vector in float32."""
    for param in params:
        param.grad = None
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    slopes = [torch.zeros_like(param) if param.grad is None else param.grad.to_dense() for param in params]
    return torch.cat([slope.flatten().float() for slope in slopes])


def _length(x: Inputs) -> int:
    return len(tree_leaves(x)[0])


def _pair(x: Inputs, labels: Any) -> tuple[Inputs, Any]:
    """The first two examples; of a single one, it and its mirror image."""
    if _length(x) > 1:
        inputs, targets = tree_map(lambda leaf: leaf[:2], (x, labels))
        return inputs, targets
    mirrored = tree_map(lambda leaf: torch.cat((leaf, leaf.flip(-1))), x)
    return mirrored, tree_map(lambda leaf: torch.cat((leaf, leaf)), labels)


def _shown(leaves: list[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{shape} ({dtype})" for shape, dtype in leaves)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Products, convolutions and recurrent layers in full float32, whatever the caller's pass uses."""
    cudnn, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    kept = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "deterministic")}
    with cudnn.flags(**kept, allow_tf32=False):
        if before != "highest":
            torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            if before != "highest":
                torch.set_float32_matmul_precision(before)


@contextmanager
def _in_float32(device: str) -> Iterator[None]:
    """Norms and sums, which are what the clip rests on, in full float32."""
    with torch.no_grad(), torch.autocast(device, enabled=False), _without_tf32():
        yield


@contextmanager
def _without_cache(device: str) -> Iterator[None]:
    """Autocast keeps a copy of each parameter in half precision, which the next example's weights must not meet."""
    torch.clear_autocast_cache()
    kind, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    with torch.autocast(device, kind, enabled=enabled, cache_enabled=False):
        yield


def _examples_apart() -> AbstractContextManager[None]:
    """Hooks on saved tensors are refused: they see all examples at once."""
    made: AbstractContextManager[None] = disable_saved_tensors_hooks("hooks on saved tensors see all examples at once")
    return made


@dataclass(frozen=True)
class Ways:
    """How a module can go: all examples `recorded`, or `written` down; `together` at weights of their own.

    `draws`: it draws at random. `why`: what keeps examples at weights of their own apart.
    """

    recorded: bool = True
    written: bool = True
    together: bool = True
    draws: bool = False
    why: str = ""


class Mapped:
    """The clipped gradients of a module at weights that are given as one vector.

    A training pass sees the module as it was built, dropout at work, each example with draws of its own; answers for
    evaluation come from the module in `eval` mode. `probe` finds out whether the module draws and which way it can go.

    Args:
        module: Any module whose forward depends on its input, its weights and torch's generator alone.
        loss: The loss of one example, from its answer and its target without a batch's axis.
        device: The kind of device that weights and examples are on.
        own_types: Whether weights, which come in float32, are handed to the module in the types of its own.
    """

    def __init__(
        self, module: nn.Module, loss: Callable[[Tensor, Any], Tensor], device: str, own_types: bool = False
    ) -> None:
        self.module, self.loss, self.device = module, loss, device
        self.copies = threading.local()
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.named = [(name, p.shape, p.numel(), p.dtype if own_types else torch.float32) for name, p in trained]
        self.sizes = [size for _, _, size, _ in self.named]
        self.starts = dict(zip((name for name, _ in trained), accumulate(self.sizes, initial=0)))
        self.relative = HALF_TOLERANCE if any(kind.itemsize < 4 for _, _, _, kind in self.named) else 1e-3
        self.ways = Ways()

    @property
    def draws(self) -> bool:
        """Whether a training pass draws at random."""
        return self.ways.draws

    @property
    def together(self) -> bool:
        """Whether examples at weights of their own go together."""
        return self.ways.together

    @property
    def recorded(self) -> bool:
        """Whether examples at shared weights go together, with no gradient of a large weight written down."""
        return self.ways.recorded

    def _by_name(self, weights: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(weights, self.sizes)
        return {name: piece.view(shape).to(kind) for piece, (name, shape, _, kind) in zip(pieces, self.named)}

    def _module(self, training: bool) -> nn.Module:
        """A copy of this thread's own: a call swaps the module's weights while it runs."""
        held = vars(self.copies).setdefault("modules", {})
        if training not in held:
            held[training] = copy.deepcopy(self.module) if training else copy.deepcopy(self.module).eval()
        made: nn.Module = held[training]
        return made

    def _loaded(self, weights: Tensor) -> tuple[nn.Module, list[nn.Parameter]]:
        """A copy of this thread's own that holds these weights itself, as in a training loop, and its parameters."""
        held = vars(self.copies)
        if "loaded" not in held:
            made = copy.deepcopy(self.module)
            own = dict(made.named_parameters())
            params = [own[name] for name, _, _, _ in self.named]
            for param, (_, _, _, kind) in zip(params, self.named):
                param.data = param.data.to(kind)
            held["loaded"] = made, params
        module, params = held["loaded"]
        with torch.no_grad():
            for param, piece in zip(params, torch.split(weights, self.sizes)):
                param.copy_(piece.view_as(param))
                param.grad = None
        return module, params

    def _call(self, named: dict[str, Tensor], x: Inputs, training: bool) -> Tensor:
        given, words = _arguments(x)
        return _one_tensor(functional_call(self._module(training), named, given, words))

    def logits(self, weights: Tensor, x: Inputs) -> Tensor:
        """The answers to all examples."""
        return self._call(self._by_name(weights), x, training=False)

    def _loss(self, named: dict[str, Tensor], x: Inputs, label: Any) -> Tensor:
        return self.loss(self._call(named, tree_map(lambda each: each[None], x), training=True)[0], label)

    def _one(self, weights: Tensor, x: Inputs, label: Any) -> Tensor:
        return self._loss(self._by_name(weights), x, label)

    def _alone(self, weights: Tensor, x: Inputs, labels: Any, place: int) -> tuple[Tensor, Tensor]:
        """One example's gradient and loss by plain autograd, of a module that holds the weights itself."""
        module, params = self._loaded(weights)
        given, words = _arguments(tree_map(lambda each: each[place][None], x))
        with torch.enable_grad(), _without_cache(self.device):
            loss = self.loss(_one_tensor(module(*given, **words))[0], tree_map(lambda each: each[place], labels))
            return _gradient(params, loss), loss.detach()

    def each(self, weights: Tensor, x: Inputs, labels: Any) -> tuple[Tensor, Tensor]:
        """Every example's gradient at the weights of its own row, and its loss."""
        if self.together:
            with torch.enable_grad():  # autograd outside the map keeps no second graph, as torch.func.grad would
                rows = weights.detach().requires_grad_()
                with Apart(), _examples_apart():
                    losses: Tensor = vmap(self._one, randomness="different")(rows, x, labels)
                (slopes,) = torch.autograd.grad(losses.sum(), rows, allow_unused=True, materialize_grads=True)
            return slopes, losses.detach()
        self._say_alone(self.ways.why)
        found = [self._alone(row, x, labels, place) for place, row in enumerate(weights)]
        return torch.stack([slope for slope, _ in found]), torch.stack([loss for _, loss in found])

    def _uses(self, weights: Tensor, x: Inputs, labels: Any, examples: int) -> tuple[Uses, Tensor]:
        """What the gradients of all examples at one vector of weights are made of, and the losses."""
        pieces = self._by_name(weights.detach())
        plain = {name: piece.detach().requires_grad_() for name, piece in pieces.items()}
        wide = {name: piece.detach().expand(examples, *piece.shape).requires_grad_() for name, piece in pieces.items()}
        recorders: list[Recorder] = []

        def one(batched: dict[str, Tensor], x: Inputs, label: Any) -> Tensor:
            recorders.append(Recorder(batched, plain, examples))
            with recorders[-1] if self.recorded else Apart():
                return self._loss(batched, x, label)

        with torch.enable_grad():
            with _examples_apart():
                losses: Tensor = vmap(one, randomness="different")(wide, x, labels)
            (recorder,) = recorders
            sources: list[Any] = [*recorder.edges, *wide.values()]
            slopes = torch.autograd.grad(losses.sum(), sources, allow_unused=True)
        with _in_float32(self.device):
            uses = recorder.finish(slopes[: len(recorder.edges)])
        for (name, piece), slope in zip(pieces.items(), slopes[len(recorder.edges) :]):
            if slope is not None:
                uses.add(Place(name, 0, len(piece) if piece.dim() else 1), Each(slope))
        return uses, losses.detach()

    def summed(
        self, weights: Tensor, x: Inputs, labels: Any, keep: Tensor, bounds: Tensor | None, known: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows of sums of gradients and of losses at one vector of weights.

        Args:
            weights: The weights.
            x: The examples, row behind row.
            labels: Their targets.
            keep: [rows, examples a row]: which examples count.
            bounds: What each gradient of a row is first scaled down to, or None.
            known: For networks that can use norms of inputs; unused.
        """
        limits = None if bounds is None else bounds.repeat_interleave(keep.shape[1])
        if self.recorded or self.ways.written:
            try:
                return self._summed(weights, x, labels, keep, limits)[:2]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as problem:  # what only some examples do: one by one, and a true error comes up there
                self._say_alone(str(problem).partition("\n")[0])
        return self._summed_alone(weights, x, labels, keep, limits)

    def _summed(
        self, weights: Tensor, x: Inputs, labels: Any, keep: Tensor, limits: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `summed`, all examples at once; and the squared norms, where there are bounds."""
        uses, losses = self._uses(weights, x, labels, keep.numel())
        with _in_float32(self.device):
            blocks, factors = uses.blocks(), keep.float()
            total = torch.zeros(keep.numel(), dtype=torch.float64, device=weights.device)
            if limits is not None:
                for block in blocks.values():
                    total += block.measure()
                factors = factors * example_factors(total, losses, limits).view_as(keep)
            counted = (factors > 0).flatten()
            good = None if bool(counted.all()) else counted
            sums = weights.new_zeros((len(keep), len(weights)))
            for place, block in blocks.items():
                made = block.summed(factors, good)
                start = self.starts[place.name] + place.start * (made.shape[1] // (place.stop - place.start))
                sums[:, start : start + made.shape[1]] = made
            losses = losses if good is None else whole(losses, good)
            return sums, losses.view_as(keep).sum(1), total

    def _summed_alone(
        self, weights: Tensor, x: Inputs, labels: Any, keep: Tensor, limits: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `summed`, with one example's gradient in memory at a time."""
        sums = weights.new_zeros((len(keep), len(weights)))
        losses = weights.new_zeros(len(keep))
        for place in keep.flatten().nonzero()[:, 0].tolist():
            slope, loss = self._alone(weights, x, labels, place)
            factor = torch.ones((), device=weights.device)
            if limits is not None:
                square = torch.linalg.vector_norm(slope, dtype=torch.float64).square()
                factor = example_factors(square, loss, limits[place])
            if bool(factor > 0):
                sums[place // keep.shape[1]] += factor * slope
                losses[place // keep.shape[1]] += loss
        return sums, losses

    def probe(self, x: Inputs, labels: Any) -> None:
        """Find out, from two examples or more, whether the module draws and which way it can go.

        Guarantee: gradients are those of plain autograd, one example at a time (tests/fl/models/test_modules.py).

        Raises:
            ValueError: The module keeps what it saw, mixes examples or cannot take these.
        """
        weights = torch.cat([p.detach().flatten().float() for p in self.module.parameters() if p.requires_grad])
        # TF32 rounds a batch otherwise than one example: what is compared here would differ without being another.
        with drawing_from(0, self.device), _in_float32(self.device):
            before = _state(self.device)
            try:
                with torch.no_grad():
                    self._call(self._by_name(weights), _first(x, 0), training=True)
                self._check_buffers()
                self._check_state(weights, x)
                self._check_answers(weights, x, labels)
            except (RuntimeError, TypeError, IndexError) as problem:
                given, wanted = ([(tuple(t.shape[1:]), t.dtype) for t in tree_leaves(each)] for each in (x, labels))
                raise ValueError(
                    f"the model does not take an example of shape {_shown(given)} with a target of "
                    f"shape {_shown(wanted)}: {str(problem).partition(chr(10))[0]}"
                ) from problem
            draws = not torch.equal(before, _state(self.device))
            # At weights that are not the module's own: a pass that reads its own in their place is another way off.
            signs = 2.0 * (torch.arange(len(weights), device=weights.device) % 2) - 1.0
            other = weights * (1.0 + 0.1 * signs) + 0.01 * (weights == 0)
            self.ways = Ways(draws=draws)
            with drawing_from(1, self.device), _Types() as types:
                self._alone(other, x, labels, 0)
            # Rounding to half precision differs with the order of sums. That the recorded way sums the right numbers is
            # seen at this tolerance too; its clip measures the very numbers that it sums, so it holds at any.
            relative = HALF_TOLERANCE if types.half else self.relative
            unrecorded = self._refusal(other, x, labels, partial(self._sums, relative=relative), relative)
            apart = self._refusal(other, x, labels, self._maps, self.relative)
            self.ways = replace(self.ways, recorded=False)
            sums = partial(self._sums, relative=self.relative)
            written = bool(unrecorded) and not self._refusal(other, x, labels, sums, self.relative)
            self.ways = Ways(not unrecorded, written, not apart, draws, apart)
        if unrecorded and not written:
            self._say_alone(unrecorded)

    def _say_alone(self, why: str) -> None:
        """Say once for each module and reason that examples go one at a time."""
        text = f"{type(self.module).__name__} takes one example at a time, which is slow: {why}"
        if text not in _SAID:
            _SAID.add(text)
            logging.getLogger("cepam").warning("cepam: %s", text)

    def _refusal(self, weights: Tensor, x: Inputs, labels: Any, way: Callable[..., Tensor], relative: float) -> str:
        """Why a way does not give the gradients of one by one; empty where it does.

        Where a module draws: of each example alone, which draws the same from the same seed either way.
        """
        length = _length(x)
        for first, last in [(at, at + 1) for at in range(length)] if self.draws else [(0, length)]:
            inputs, targets = tree_map(lambda each: each[first:last], (x, labels))  # noqa: B023
            with drawing_from(1, self.device):
                alone = torch.stack([self._alone(weights, inputs, targets, at)[0] for at in range(last - first)])
            try:
                with drawing_from(1, self.device):
                    found = way(weights, inputs, targets, alone)
            except (RuntimeError, ValueError, NotImplementedError) as problem:
                return str(problem).partition("\n")[0] or type(problem).__name__
            kinks = way != self._maps and near_by_parameter(alone, found, self.sizes)
            if not (_near(alone, found, relative) or kinks):
                return _difference(alone, found)
        return self._meeting(weights, x, labels, way)

    def _meeting(self, weights: Tensor, x: Inputs, labels: Any, way: Callable[..., Tensor]) -> str:
        """How examples meet in a batch, however little; empty where none changes another's gradient.

        What sees all examples at once may be right within any tolerance here, and far off beside another record.
        """
        pair = _pair(x, labels)
        other = tree_map(lambda leaf: leaf / 2 if leaf.is_floating_point() else leaf.flip(0), pair)
        mixed = tree_map(lambda one, two: torch.cat((one[:1], two[1:])), pair, other)
        found = []
        try:
            for given in (pair, mixed, other):
                with drawing_from(1, self.device):
                    found.append(way(weights, *given, weights.new_zeros((2, 1))))
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            return str(problem).partition("\n")[0] or type(problem).__name__
        if _near(found[0][0], found[1][0], APART) and _near(found[1][1], found[2][1], APART):
            return ""
        return "an example's gradient changes with the other examples of its batch"

    def _maps(self, weights: Tensor, x: Inputs, labels: Any, alone: Tensor) -> Tensor:
        """Gradients that `torch.func` maps."""
        return self.each(weights.expand(len(alone), -1), x, labels)[0]

    def _sums(self, weights: Tensor, x: Inputs, labels: Any, alone: Tensor, relative: float) -> Tensor:
        """Gradients by `_summed`; RuntimeError where it measures norms that are too small."""
        keep = torch.ones((len(alone), 1), dtype=torch.bool, device=weights.device)
        limits = torch.full((len(alone),), torch.finfo(torch.float32).max, device=weights.device)
        slopes, _, total = self._summed(weights, x, labels, keep, limits)
        norms = torch.linalg.vector_norm(alone, dim=1, dtype=torch.float64)
        if not bool((total.sqrt() >= norms * (1.0 - relative)).all()):
            raise RuntimeError("a norm is smaller than that of one example alone")
        return slopes

    def _check_answers(self, weights: Tensor, x: Inputs, labels: Any) -> None:
        """Raise where an example's gradient is not that of plain autograd, whatever went through before."""
        found = []
        for place in (0, 0, -1, 0):
            with drawing_from(1, self.device):
                found.append(self._alone(weights, x, labels, place)[0])
        before, _, _, after = found
        if not (_near(before, found[1]) and _near(before, after)):
            raise ValueError(
                "the model's gradient for an example changes after another example: it keeps data outside the weights, "
                "without clip or noise, or draws from a generator other than torch's own; make forward depend on its "
                "input, the weights and torch's generator alone"
            )
        if not _near(before, self._plain(x, labels), self.relative):
            raise ValueError(
                "the model's gradient at weights that it is handed is another than plain autograd's at its own: a hook "
                "or a forward of a single object reaches past its own weights; define layers as classes, without hooks"
            )

    def _plain(self, x: Inputs, labels: Any) -> Tensor:
        """The gradient of the first example by plain autograd, of the module itself at its own weights."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if any(p._post_accumulate_grad_hooks for p in trained):
            raise ValueError("a parameter has a hook that changes its gradient: no gradient by example has one")
        kept = [p.grad for p in trained]
        try:
            with drawing_from(1, self.device), torch.enable_grad(), _without_cache(self.device):
                given, words = _arguments(_first(x, 0))
                loss = self.loss(self.module(*given, **words)[0], tree_map(lambda each: each[0], labels))
                return _gradient(trained, loss)
        finally:
            for param, slope in zip(trained, kept):
                param.grad = slope

    def _check_state(self, weights: Tensor, x: Inputs) -> None:
        """Raise where a pass leaves anything in the module, or where what it left depends on the example.

        What the first pass makes and keeps, whatever it saw, such as a table of positions, is allowed.
        """
        named = self._by_name(weights)

        def after(*places: int) -> list[dict[str, Any]]:
            module, found = copy.deepcopy(self.module), []
            for place in places:
                given, words = _arguments(_first(x, place))
                functional_call(module, named, given, words)
                found.append(state_of(module))
            return found

        with torch.no_grad():
            first, again = after(0, -1)
            (other,) = after(-1)
        for seen in (again, other):
            changed = [name for name in {**first, **seen} if not same(first.get(name), seen.get(name))]
            if changed:
                raise ValueError(
                    f"attribute {min(changed)} of the model changes as it is called: it would keep data outside the "
                    "weights, without clip or noise; make forward depend on its input and the weights alone"
                )

    def _check_buffers(self) -> None:
        """Raise where a pass has written to a buffer: it would carry data past the clip and the noise."""
        mine = dict(self._module(training=True).named_buffers())
        for name, held in self.module.named_buffers():
            if not torch.equal(held, mine[name]):
                raise ValueError(
                    f"buffer {name} changes as the model trains: it would keep data outside the weights, "
                    "without noise; use a layer that keeps nothing, such as nn.GroupNorm"
                )
