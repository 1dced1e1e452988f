"""Per-example gradients as sums of outer products: their norms, and their clipped sum, without writing them down.

A weight matrix that is used at T places of an example (the steps of a sequence, the patches of an image, several layers
that share it) has the gradient sum_t u_t v_t^T: u_t is the slope of what came out, v_t what went in. Its squared norm
is sum_st (u_s . u_t)(v_s . v_t), the sum of the products of two Gram matrices. A weighted sum over all examples is one
matrix product. An embedding is the same with u_t a unit vector. Where the gradient is smaller than the Gram matrices it
is written down instead, example by example.

Guarantee: what `Block.measure` gives is at least the squared norm of what `Block.summed` adds for an example with
factor one, measured in float64 (tests/pytorch/test_per_example.py). Every dot product of n numbers in float32 is off by
at most n 2^-24 times the product of the norms, in any order of summation; that is added.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from cepam.clip import clip_factors

ROUNDINGS = 3
"""To float32, on the way from a factor to a number of the clipped gradient: the factor, the slope, its product."""
UNIT = 2.0**-24
"""A rounding to float32, relative."""
HALF = 2.0**-8
"""A rounding to bfloat16 (float16: less), relative."""
LOOSE = 0.01
"""From so large an allowance for rounding on, Gram matrices are computed in float64."""
AT_ONCE = 2**25
"""Numbers of per-example gradients that are in memory at once for one weight: 128 MiB."""


def example_factors(squares: Tensor, losses: Tensor, bounds: Tensor) -> Tensor:
    """What scales each example's gradient to its l2 bound; 0 for an example whose norm or loss is not a number.

    Guarantee: a clipped gradient is within its bound, measured in float64, and an example that overflows adds nothing
    rather than everything (tests/fl/models/suite.py).
    """
    factors = clip_factors(squares.sqrt(), bounds.double(), torch.float32, ROUNDINGS)
    return torch.where(losses.isfinite(), factors, 0.0).float()


def whole(tensor: Tensor, good: Tensor) -> Tensor:
    """The tensor, with zeros for examples that do not count: nothing times zero is not nothing."""
    return torch.where(good.reshape(-1, *[1] * (tensor.dim() - 1)), tensor, 0.0)


@dataclass(frozen=True)
class Place:
    """Rows `start` to `stop` of a weight."""

    name: str
    start: int
    stop: int


@dataclass
class Outer:
    """Gradients sum_t u_t v_t^T: u [examples, places, rows], v [examples, places, columns]."""

    u: Tensor
    v: Tensor

    def dense(self) -> Tensor:
        """Each example's gradient, a row each."""
        return (self.u.float().transpose(1, 2) @ self.v.float()).flatten(1)

    def lengths(self) -> Tensor:
        """sum_t |u_t| |v_t| of each example: no dot product over places is longer."""
        return (_lengths(self.u) * _lengths(self.v)).sum(1)


@dataclass
class Rows:
    """Gradients sum_t e_(index_t) v_t^T, e unit vectors: index [examples, places], v [examples, places, columns]."""

    index: Tensor
    v: Tensor
    rows: int

    def dense(self) -> Tensor:
        """Each example's gradient, a row each."""
        return self.scattered(self.v.float(), len(self.v)).flatten(1)

    def scattered(self, values: Tensor, rows: int) -> Tensor:
        """The values [examples, places, columns] added up for each row of examples: [rows, weight's rows, columns]."""
        each = torch.arange(rows, device=values.device).repeat_interleave(len(values) // rows) * self.rows
        made = values.new_zeros((rows * self.rows, values.shape[2]))
        where = (self.index + each[:, None]).flatten()
        if values.is_cuda:  # sorted, and so the same bits every time
            return made.index_put_((where,), values.flatten(0, 1), accumulate=True).view(rows, self.rows, -1)
        return made.index_add_(0, where, values.flatten(0, 1)).view(rows, self.rows, -1)

    def lengths(self) -> Tensor:
        return _lengths(self.v).sum(1)

    def squares(self) -> Tensor:
        """Squared norms: slopes of one row of the weight are added up first."""
        examples = torch.arange(len(self.index), device=self.index.device)[:, None] * self.rows
        found, group = torch.unique(self.index + examples, return_inverse=True)
        sums = self.v.new_zeros((len(found), self.v.shape[2]), dtype=torch.float32)
        sums.index_add_(0, group.flatten(), self.v.flatten(0, 1).float())
        made = torch.zeros(len(self.index), dtype=torch.float64, device=self.v.device)
        return made.index_add_(0, found.div(self.rows, rounding_mode="floor"), squares(sums))


@dataclass
class Each:
    """Gradients that were written down, a row each."""

    value: Tensor

    def dense(self) -> Tensor:
        return self.value.float().flatten(1)


Use = Outer | Rows | Each


class Block:
    """All uses of one weight, or of some rows of it."""

    def __init__(self, uses: list[Use]) -> None:
        outers = [use for use in uses if isinstance(use, Outer)]
        rows = [use for use in uses if isinstance(use, Rows)]
        written = [use for use in uses if isinstance(use, Each)]
        if written and (outers or rows):
            written, outers, rows = [Each(use.dense()) for use in uses], [], []
        self.outer = Outer(*(_joined([getattr(use, name) for use in outers]) for name in "uv")) if outers else None
        self.rows = (
            Rows(_joined([use.index for use in rows]), _joined([use.v for use in rows]), rows[0].rows) if rows else None
        )
        self.each = sum((use.dense() for use in written[1:]), written[0].dense()) if written else None

    def measure(self) -> Tensor:
        """Squared norms of the examples' gradients, in float64, never less than those of what `summed` adds."""
        if self.outer is not None and self.rows is not None:
            return self._measure_tied(self.outer, self.rows)
        if self.outer is not None:
            return self._measure_outer(self.outer)
        if self.rows is not None:
            return _at_least(self.rows.squares(), self.rows.lengths(), 2 * self.rows.v.shape[1] + 4)
        assert self.each is not None
        return squares(self.each)

    def _measure_outer(self, outer: Outer) -> Tensor:
        (examples, places, rows), columns = outer.u.shape, outer.v.shape[2]
        size = rows * columns
        half = outer.u.dtype != torch.float32 or outer.v.dtype != torch.float32
        if places == 1 and not half:
            return squares(outer.u) * squares(outer.v)
        if places * (rows + columns) >= size:
            if examples * size <= AT_ONCE:
                self.each, self.outer = outer.dense(), None
                return squares(self.each)
            step = max(1, AT_ONCE // size)
            parts = (Outer(u, v).dense() for u, v in zip(torch.split(outer.u, step), torch.split(outer.v, step)))
            return _at_least(torch.cat([squares(part) for part in parts]), outer.lengths(), 2 * places + 4, half)
        return _at_least(*_gram(outer), places + 4, half)

    def _measure_tied(self, outer: Outer, rows: Rows) -> Tensor:
        """An output layer that shares its weight with an embedding: both squares, and twice the inner product."""
        alone, lengths = _gram(outer)
        picked = outer.u.gather(2, rows.index[:, None, :].expand(-1, outer.u.shape[1], -1)).float()
        cross = (picked * (outer.v.float() @ rows.v.float().transpose(1, 2))).sum((1, 2), dtype=torch.float64)
        beside, columns = rows.lengths(), outer.v.shape[2]
        slack = 2.0 * (columns + 4) * UNIT * lengths * beside
        half, terms = outer.u.dtype != torch.float32, 2 * (outer.u.shape[1] + rows.v.shape[1]) + 4
        return _at_least(alone + rows.squares() + 2.0 * cross + slack, lengths + beside, terms, half)

    def summed(self, factors: Tensor, good: Tensor | None) -> Tensor:
        """Row r of `factors` [rows, examples a row]: the sum of gradients times factors over that row's examples."""
        rows, made = len(factors), None
        if self.each is not None:
            each = self.each if good is None else whole(self.each, good)
            made = (factors[:, None, :] @ each.view(rows, -1, each.shape[1]))[:, 0]
        for use in (self.outer, self.rows):
            if use is None:
                continue
            u, v = (use.u, use.v) if isinstance(use, Outer) else (None, use.v)
            if good is not None:
                u, v = None if u is None else whole(u, good), whole(v, good)
            if isinstance(use, Rows):
                part = use.scattered(v.float() * factors.view(-1, 1, 1), rows).flatten(1)
            else:
                assert u is not None
                part = _product(u, v, factors).flatten(1)
            made = part if made is None else made + part
        assert made is not None
        return made


class Uses:
    """What the per-example gradients of all weights are made of, for so many examples."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self._uses: defaultdict[Place, list[Use]] = defaultdict(list)

    def add(self, place: Place, use: Use) -> None:
        """Note one use of a weight."""
        self._uses[place].append(use)

    def blocks(self) -> dict[Place, Block]:
        """One block for each place; RuntimeError where places overlap, so that their norms do not add up."""
        last: Place | None = None
        for place in sorted(self._uses, key=lambda each: (each.name, each.start)):
            if last is not None and last.name == place.name and place.start < last.stop:
                raise RuntimeError(f"{place.name} is used as a whole and in part")
            last = place
        return {place: Block(uses) for place, uses in self._uses.items()}


def squares(x: Tensor) -> Tensor:
    """The squared norm of every example, summed in float64."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()


def _lengths(x: Tensor) -> Tensor:
    """Norms over the last axis, in float64."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
    return norms


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _gram(outer: Outer) -> tuple[Tensor, Tensor]:
    """Squared norms by Gram matrices with an allowance for their rounding, and `Outer.lengths`."""
    (_, places, rows), columns = outer.u.shape, outer.v.shape[2]
    lengths, relative = outer.lengths(), (rows + columns + 4) * UNIT
    exact = relative * places > LOOSE
    u, v = (x.double() if exact else x.float() for x in (outer.u, outer.v))
    product = (u @ u.transpose(1, 2)) * (v @ v.transpose(1, 2))
    found = product.sum((1, 2), dtype=torch.float64).clamp(min=0.0)
    return found + (2.0**-29 * relative if exact else relative) * lengths.square(), lengths


def _at_least(found: Tensor, lengths: Tensor, terms: int, half: bool = False) -> Tensor:
    """Squared norms with what a float32 sum of so many terms may add to a norm; `half`: terms in half precision."""
    return (found.clamp(min=0.0).sqrt() + (terms * UNIT + (HALF if half else 0.0)) * lengths).square()


def _product(u: Tensor, v: Tensor, factors: Tensor) -> Tensor:
    """sum over examples and places of factor u v^T, a matrix for each row of factors, in float32."""
    rows, scaled = len(factors), u.float() * factors.view(-1, 1, 1)
    if not v.is_cuda and v.shape[1] > 1 and v.stride(1) == 1:  # patches of images: example by example, without a copy
        parts = zip(scaled.transpose(1, 2).chunk(rows), v.float().chunk(rows))
        return torch.stack([torch.addbmm(each.new_zeros(()), each, other) for each, other in parts])
    left, right = scaled.reshape(rows, -1, u.shape[2]).transpose(1, 2), v.reshape(rows, -1, v.shape[2])
    if v.is_cuda and v.dtype == u.dtype != torch.float32:  # products of halves are exact in float32
        return torch.bmm(left.to(v.dtype), right, out_dtype=torch.float32)
    return torch.bmm(left, right.float())
