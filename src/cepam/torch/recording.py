"""A forward pass that notes, for every weight, what its per-example gradients are made of.

The pass runs under `torch.func.vmap`: the model sees one example at a time, so examples cannot meet, whatever the model
does. Every weight goes in with an axis of examples, so its gradient comes out example by example: right for any
operation, and slow for large weights. So the functions that use most weights (fully connected, convolution, embedding,
recurrent layers) are caught here, called once for all examples with the plain weight, and noted: their per-example
gradients are sums of outer products of what went in and the slope of what came out (`uses.py`). What is not caught has
its gradient by the axis of examples, so nothing can be missed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from cepam.torch.recurrent import CELLS, Layer, run_layers
from cepam.torch.uses import Each, Outer, Place, Rows, Uses

Slopes = Sequence[Tensor | None]
Made = Callable[[Slopes], None]
Handler = Callable[..., Any]


class Apart(TorchFunctionMode):
    """Refuses what would see all examples of a `vmap` at once: batching rules that PyTorch does not bring itself."""

    def __torch_function__(
        self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, unless examples could meet in it."""
        self.refuse(func, args)
        return func(*args, **(kwargs or {}))

    def refuse(self, func: Any, args: tuple[Any, ...]) -> None:
        """Raise RuntimeError for a custom operation, and for an autograd function with a `vmap` of its own."""
        if isinstance(func, OpOverload | OpOverloadPacket) and not str(func).startswith(("aten.", "prims.")):
            raise RuntimeError(f"custom operation {func} could see all examples of a batch at once")
        rule = torch.autograd.Function.vmap
        for each in args[:1]:
            if isinstance(each, type) and getattr(each, "vmap", rule) is not rule:
                raise RuntimeError(f"{each.__name__} has a batching rule of its own, which sees all examples at once")


class Recorder(Apart):
    """Catches functions of weights inside one `vmap`.

    Args:
        batched: The weights as the model sees them, their axis of examples hidden.
        plain: The same weights without that axis, with `requires_grad`.
        examples: The number of examples.
    """

    def __init__(self, batched: Mapping[str, Tensor], plain: Mapping[str, Tensor], examples: int) -> None:
        super().__init__()
        self.plain, self.examples = plain, examples
        self.level = functorch.maybe_get_level(next(iter(batched.values())))
        # The tensor is held beside its place: while it lives no other object has its id.
        self.known = {id(value): (value, Place(name, 0, _rows(value))) for name, value in batched.items()}
        self.edges: list[GradientEdge] = []
        self._notes: list[tuple[int, int, Made]] = []
        self._entered: list[tuple[Tensor, int]] = []
        self.uses = Uses(examples)

    def __torch_function__(
        self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call what was caught, or the function itself."""
        self.refuse(func, args)
        handler = HANDLERS.get(func)
        made = None if handler is None else handler(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if made is None else made

    def place(self, weight: object) -> Place | None:
        """Where a tensor stands among the weights; None where it is not one of them."""
        found = self.known.get(id(weight))
        return None if found is None else found[1]

    def weight(self, place: Place, x: Tensor | None = None) -> Tensor:
        """The plain weight at a place; for an operation on x, such that its output is in the graph."""
        whole = self.plain[place.name]
        part = whole if place.stop - place.start == _rows(whole) else whole[place.start : place.stop]
        return part.detach() if x is None or x.requires_grad else part

    def opened(self, x: Tensor) -> Tensor | None:
        """The tensor with the axis of examples first; None where another transform holds it."""
        level = functorch.maybe_get_level(x)
        if level == self.level and functorch.is_batchedtensor(x):
            made: Tensor = functorch.get_unwrapped(x).movedim(functorch.maybe_get_bdim(x), 0)
        elif level < 0:
            made = x.expand(self.examples, *x.shape)
        else:
            return None
        return made if functorch.maybe_get_level(made) < 0 else None

    def closed(self, x: Tensor) -> Tensor:
        """The tensor as the model sees it."""
        made: Tensor = functorch._add_batch_dim(x, 0, self.level)
        return made

    def taken(self, x: Tensor, like: Tensor) -> Tensor:
        """What went into an operation, in the type of what came out, to be held until the slopes are known."""
        held = x.detach().to(like.dtype)
        if held.data_ptr() == x.data_ptr():
            self._entered.append((held, held._version))
        return held

    def own(self, out: Tensor, shape: Sequence[int]) -> Tensor:
        """The output in this shape, no view: the model may write over it, and its slope is still that of the output."""
        return (
            torch.ops.aten._unsafe_view(out, list(shape)) if out._is_view() or out.shape != torch.Size(shape) else out
        )

    def note(self, outs: Sequence[Tensor], made: Made) -> None:
        """Have `made` called with the slopes of these outputs, None for one that leads to no loss."""
        begin = len(self.edges)
        self.edges += [get_gradient_edge(out) for out in outs]
        self._notes.append((begin, len(self.edges), made))

    def finish(self, slopes: Slopes) -> Uses:
        """All uses of weights that were caught, from the slopes of `edges`.

        Raises:
            RuntimeError: A tensor that went into an operation was written over afterwards.
        """
        if any(held._version != version for held, version in self._entered):
            raise RuntimeError("a tensor that a layer took was modified by an inplace operation")
        for begin, end, made in self._notes:
            if any(slope is not None for slope in slopes[begin:end]):
                made(slopes[begin:end])
        return self.uses

    def add_product(self, weight: Place, bias: Place | None, u: Tensor, v: Tensor) -> None:
        """Note gradients sum_t u_t v_t^T of a weight, and sum_t u_t of its bias."""
        u, v = _single(u), _single(v)
        self.uses.add(weight, Outer(u, v))
        if bias is not None:
            self.uses.add(bias, Each(u.sum(1, dtype=torch.float32)))


def _rows(weight: Tensor) -> int:
    return len(weight) if weight.dim() else 1


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _places(x: Tensor) -> Tensor:
    """[examples, ..., n] as [examples, places, n]."""
    return x.reshape(len(x), -1, x.shape[-1])


def linear(on: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """`F.linear`."""
    place, beside = on.place(weight), on.place(bias)
    x = None if place is None else on.opened(input)
    if place is None or x is None or weight.dim() != 2:
        return None
    out = F.linear(x, on.weight(place, x), None if beside is None else on.weight(beside))
    out, held = on.own(out, out.shape), on.taken(x, out)

    def made(slopes: Slopes) -> None:
        (slope,) = slopes
        assert slope is not None
        on.add_product(place, beside, _places(slope), _places(held))

    on.note([out], made)
    seen = on.closed(out)
    return seen if bias is None or beside is not None else seen + bias


def _by_place(x: Tensor, examples: int) -> Tensor:
    """[..., channels, places] of all images as [examples, places, channels]."""
    each = x.reshape(examples, -1, *x.shape[-2:]).transpose(1, 2)
    return each.flatten(2).transpose(1, 2)


def _pair(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


def convolution(
    on: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor | None:  # fmt: skip
    """`F.conv1d`, `F.conv2d` and `F.conv3d` of one group: a matrix product of patches [examples, places, ins · kernel].

    The slopes of inputs come from one ordinary backward pass; that of the weights is left out of it. What it would
    cost is spent here once, example by example, so that norms and the clipped sum need no second backward pass. Patches
    are copied with the places of an image last, in whole rows, and handed on as transposed views.
    """
    place, beside = on.place(weight), on.place(bias)
    known = place is not None and (bias is None or beside is not None) and groups == 1 and not isinstance(padding, str)
    x = on.opened(input) if known else None
    if place is None or x is None:
        return None
    dims = weight.dim() - 2
    hop, edge, spread = (_pair(value, dims) for value in (stride, padding, dilation))
    flat = x.flatten(0, x.dim() - dims - 2)  # a batch of one, or of more, inside the example
    call = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    out = call(flat, on.weight(place, x), None if beside is None else on.weight(beside), hop, edge, spread)
    out = on.own(out, (*x.shape[: x.dim() - dims - 1], *out.shape[1:]))
    held, kernel, examples = on.taken(flat, out), weight.shape[2:], len(x)

    def made(slopes: Slopes) -> None:
        (slope,) = slopes
        assert slope is not None
        patches = held if not any(edge) else F.pad(held, [side for size in reversed(edge) for side in (size, size)])
        for dim in range(dims):
            patches = patches.unfold(2 + dim, (kernel[dim] - 1) * spread[dim] + 1, hop[dim])[..., :: spread[dim]]
        patches = patches.movedim(tuple(range(2, 2 + dims)), tuple(range(-dims, 0)))
        patches = patches.flatten(-dims).flatten(1, -2)  # [images, ins · kernel, places]
        on.add_product(place, beside, _by_place(slope.flatten(-dims), examples), _by_place(patches, examples))

    on.note([out], made)
    return on.closed(out)


def embedding(
    on: Recorder, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor | None:  # fmt: skip
    """`F.embedding` of a table that lookups do not change."""
    place = on.place(weight)
    index = on.opened(input) if place is not None and max_norm is None and not scale_grad_by_freq else None
    if place is None or index is None:
        return None
    table = on.weight(place, index)
    out = F.embedding(index, table)
    rows = len(table)
    padded = None if padding_idx is None else padding_idx % rows

    def made(slopes: Slopes) -> None:
        (slope,) = slopes
        assert slope is not None
        where = index.reshape(len(index), -1)
        slope = _single(_places(slope))
        if padded is not None:
            slope = slope.masked_fill((where == padded)[:, :, None], 0.0)
        on.uses.add(place, Rows(where, slope, rows))

    on.note([out], made)
    return on.closed(out)


def split(on: Recorder, weight: Tensor, size: Any, dim: int = 0) -> tuple[Tensor, ...] | None:
    """`Tensor.split` and `Tensor.chunk` of a weight's rows, as attention does; the parts are weights too."""
    return _parts(on, weight, Tensor.split, size, dim)


def chunk(on: Recorder, weight: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...] | None:
    """As `split`."""
    return _parts(on, weight, Tensor.chunk, chunks, dim)


def _parts(on: Recorder, weight: Tensor, cut: Callable[..., Any], how: Any, dim: int) -> tuple[Tensor, ...] | None:
    place = on.place(weight)
    if place is None or dim != 0:
        return None
    parts, start = tuple(cut(weight, how, 0)), place.start
    for part in parts:
        on.known[id(part)] = part, Place(place.name, start, start + len(part))
        start += len(part)
    return parts


# PyTorch's own attention, with a single change: it does not ask again whether a mode wants to see it, but calls on.
_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def attention(on: Recorder, *given: Any, **named: Any) -> Any:
    """`F.multi_head_attention_forward`, whose linear maps are caught."""
    with on:
        return _attention(*given, **named)


def weighted(
    on: Recorder, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """`F.scaled_dot_product_attention`, which `vmap` would go through example by example."""
    if dropout_p > 0:
        return None
    q, k, v = (on.opened(each) for each in (query, key, value))
    mask = None if attn_mask is None else on.opened(attn_mask)
    if q is None or k is None or v is None or q.dim() < 4 or (mask is None) != (attn_mask is None):
        return None
    front = q.shape[:-3]
    q, k, v = (x.expand(*front, *x.shape[-3:]).flatten(0, -4) for x in (q, k, v))
    if mask is not None:
        mask = mask.reshape(len(mask), *[1] * (len(front) + 3 - mask.dim()), *mask.shape[1:])
        mask = mask.expand(*front, *mask.shape[-3:]).flatten(0, -4)
    made = F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    return on.closed(made.reshape(*front, *made.shape[1:]))


def recurrent(kind: str) -> Handler:
    """`torch.gru`, `torch.lstm`, `torch.rnn_tanh` or `torch.rnn_relu` of padded sequences."""
    cell = CELLS[kind]

    def handler(on: Recorder, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...] | None:
        if isinstance(params, Tensor) or len(rest) != 6 or not isinstance(params, Sequence):  # a packed sequence
            return None
        biases, layers, dropout, train, both, batch_first = rest
        states = list(hx) if isinstance(hx, Sequence) else [hx]
        places = [on.place(each) for each in params]
        x, first = on.opened(input), [on.opened(each) for each in states]
        each, per = layers * (2 if both else 1), 4 if biases else 2
        if x is None or None in places or None in first or len(params) != each * per:  # projections have more
            return None
        # [examples, batch of one, steps, ins] -> [steps, examples · batch, ins]
        x = x if batch_first else x.transpose(1, 2)
        examples, inner = x.shape[:2]
        entering = x.flatten(0, 1).transpose(0, 1)
        start = [s.transpose(1, 2).flatten(0, 1).transpose(0, 1) for s in first if s is not None]

        def masked(value: Tensor) -> Tensor:
            """Dropout as the model would draw it: each example by itself."""
            apart = value.transpose(0, 1).reshape(examples, inner, *value.shape[:1], -1)
            drawn = on.opened(F.dropout(on.closed(apart), dropout, True))
            assert drawn is not None
            return drawn.flatten(0, 1).transpose(0, 1)

        def noted(outs: list[Tensor], entered: list[Tensor], weight: Place, bias: Place | None) -> None:
            def made(slopes: Slopes) -> None:
                whole = torch.stack([out.new_zeros(out.shape) if s is None else s for s, out in zip(slopes, kept)])
                on.add_product(weight, bias, *(_by_example(each, examples) for each in (whole, torch.stack(held))))

            kept, held = [out.detach() for out in outs], [on.taken(each, outs[0]) for each in entered]
            on.note(outs, made)

        found = [place for place in places if place is not None]
        groups = [found[at : at + per] for at in range(0, len(found), per)]
        out, last = run_layers(
            cell, entering, start, [Layer(on, group, noted) for group in groups], 2 if both else 1,
            masked if train and dropout > 0 else None,
        )  # fmt: skip
        out = out.transpose(0, 1).reshape(examples, inner, *out.shape[:1], -1)
        out = out if batch_first else out.transpose(1, 2)
        ended = [s.transpose(0, 1).reshape(examples, inner, *s.shape[:1], -1).transpose(1, 2) for s in last]
        return on.closed(out), *(on.closed(state) for state in ended)

    return handler


def _by_example(x: Tensor, examples: int) -> Tensor:
    """[parts, steps a part, examples · batch, n] as [examples, places, n]."""
    flat = x.flatten(0, -3) if x.dim() > 3 else x
    return flat.transpose(0, 1).reshape(examples, -1, x.shape[-1])


HANDLERS: dict[Any, Handler] = {
    F.linear: linear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.embedding: embedding,
    F.multi_head_attention_forward: attention,
    F.scaled_dot_product_attention: weighted,
    Tensor.split: split,
    Tensor.chunk: chunk,
    torch.gru: recurrent("gru"),
    torch.lstm: recurrent("lstm"),
    torch.rnn_tanh: recurrent("rnn_tanh"),
    torch.rnn_relu: recurrent("rnn_relu"),
}
