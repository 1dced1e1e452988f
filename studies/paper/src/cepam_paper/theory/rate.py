"""The rate of the paper's code: what H and M are stated to cost, and what they cost on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.codec import wire
from cepam.codec.codec import Codec
from cepam.distributions.laws import Law, check_scale
from cepam.kernels.format.golomb import golomb_parameter
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy.paper_coder import coordinate_box, field_widths, golomb_fields
from cepam.kernels.numpy.quantizer import scale_of_radius
from cepam.keys import Address
from cepam.lattices.lattice import Lattice, Search

_NODES = 1 << 15


@dataclass(frozen=True)
class Rate:
    """Expected bits of one message of N sub-vectors by the paper's code, without header and seal.

    Paper: Section IV-B, N (H(Geom(p(U)) | U) + H(ceil(log |M(U)|) | U)). Departs: the second term is the entropy of a
    number that U determines, hence zero; what the code spends is the expectation E[ceil(log |M(U)|)]. `golomb_bits`
    is what a Golomb code pays for H, at least `trial_entropy_bits`: so the printed "at most" holds for an ideal code.
    """

    subvectors: int
    trial_entropy_bits: float
    golomb_bits: float
    point_bits: float

    @property
    def printed(self) -> float:
        """The printed formula read literally: the entropy of H alone, since the second entropy is zero."""
        return self.subvectors * self.trial_entropy_bits

    @property
    def repaired(self) -> float:
        """The printed formula with an expectation in the second place."""
        return self.subvectors * (self.trial_entropy_bits + self.point_bits)

    @property
    def spent(self) -> float:
        """What the code spends in the mean: a Golomb code for H, a fixed length given U for M."""
        return self.subvectors * (self.golomb_bits + self.point_bits)


def rate(law: Law, lattice: Lattice, bound: float, size: int) -> Rate:
    """The rate for updates of `size` coordinates, each at most `bound` in magnitude.

    Departs: |M(U)| counts the smallest box of lattice coordinates around the reachable points, as the coder does
    (`cepam.kernels.numpy.paper_coder`); on Z^1 that is M(U) itself. The expectation over U is a midpoint sum over its
    quantiles. Guarantee: theory/test_rate.py compares with real messages and with brute force.
    """
    check_scale("bound", bound)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    share = lattice.acceptance(law.norm)
    return Rate(
        subvectors=-(-size // lattice.dimension),
        trial_entropy_bits=trial_entropy(share),
        golomb_bits=golomb_length(share),
        point_bits=_point_bits(law, lattice, bound),
    )


def trial_entropy(acceptance: float) -> float:
    """H(Geom(p)) in bits: the binary entropy of p over p; zero where every trial is accepted."""
    if acceptance > 1 - 1e-9:
        return 0.0
    q = 1.0 - acceptance
    return -(acceptance * math.log2(acceptance) + q * math.log2(q)) / acceptance


def golomb_length(acceptance: float) -> float:
    """The mean length in bits of the best Golomb code for Geom(p)."""
    run = golomb_parameter(acceptance)
    if run == 0:
        return 0.0
    # Beyond this many trials less than 2^-64 of the chance is left.
    most = math.ceil(-64 * math.log(2) / math.log1p(-acceptance)) + run
    h = np.arange(1, most + 1, dtype=np.int64)
    ones, _, width = golomb_fields(h, run)
    chance = acceptance * (1.0 - acceptance) ** (h - 1.0)
    return float((chance * (ones + 1 + width)).sum())


def _point_bits(law: Law, lattice: Lattice, bound: float) -> float:
    plan = layered_plan(law, lattice)
    half = (np.arange(_NODES) + 0.5) / (2 * _NODES)
    radius = np.concatenate([law.radius_below(half, plan.n), law.radius_above(half, plan.n)]) * plan.scale
    _, count = coordinate_box(plan, scale_of_radius(plan, radius), int(bound / plan.unit))
    return float(field_widths(count)[0].sum(axis=1).mean())


def reachable_points(lattice: Lattice, reach: float) -> int:
    """|M(u)| itself for l2 balls, `reach` = (1 + gamma / r) in radii of the ball inside the lattice's cell.

    Paper: Section IV-B, (X + L_u - beta P) / beta meeting the lattice, with P the box that dithers are drawn from: the
    points M for which M + P meets the ball. Dimensions up to 3, since the points are listed one by one.
    """
    n = lattice.dimension
    if n > 3:
        raise ValueError(f"points are listed in dimensions up to 3 only, got {n}")
    if lattice.search is Search.CUBIC:
        return (1 << n) * _orthant(n, reach * lattice.ball_radius("l2"))
    radius, sides = reach * lattice.ball_radius("l2"), lattice.box.astype(np.float64)
    basis = lattice.basis.astype(np.float64)
    # Coordinates of any point in the box [-radius - sides, radius] around the ball.
    most = np.ceil(np.abs(np.linalg.inv(basis)) @ (radius + sides)).astype(int)
    grid = np.stack(np.meshgrid(*(np.arange(-k, k + 1.0) for k in most), indexing="ij"), axis=-1)
    points = grid.reshape(-1, n) @ basis.T
    nearest = np.maximum(points, np.minimum(points + sides, 0.0))
    return int((np.square(nearest).sum(axis=1) <= radius**2).sum())


def _orthant(n: int, radius: float) -> int:
    """How many points with coordinates 0, 1, 2, … lie in the ball.

    A cell of Z^n that begins at M is as far from 0 as M or M + 1, coordinate by coordinate, so that every such point
    stands for 2^n cells. Guarantee: theory/test_rate.py lists the cells one by one.
    """
    along = np.arange(math.floor(radius) + 1.0)
    squares = np.zeros(1)
    for _ in range(n - 1):
        squares = (squares[:, None] + np.square(along)).ravel()
        squares = squares[squares <= radius**2]
    return int((np.floor(np.sqrt(radius**2 - squares)) + 1).sum())


def paper_points(n: int, reach: float) -> int:
    """|M(u)| with the paper's own cell (-1/2, 1/2]^n of Z^n, `reach` = (1 + gamma / r).

    Paper: Sections IV-B and V-A. With beta = 2 r the ball of all x + z has radius reach/2 in units of the cell. M
    counts where M + (-1/2, 1/2]^n meets it, that is where distances max(|M_i| - 1/2, 0) are within it.
    The dithers of this package come from [0, 1)^n, which meets it at other points (`reachable_points`).
    """
    radius = reach / 2
    along = np.concatenate([[0.0], np.arange(math.floor(radius + 0.5)) + 0.5])
    many = np.where(along > 0, 2.0, 1.0)
    squares, counts = np.zeros(1), np.ones(1)
    for _ in range(n - 1):
        squares = (squares[:, None] + np.square(along)).ravel()
        counts = (counts[:, None] * many).ravel()
        counts, squares = counts[squares <= radius**2], squares[squares <= radius**2]
    return int((counts * (1 + 2 * np.floor(np.sqrt(radius**2 - squares) + 0.5))).sum())


def paper_point_bits(law: Law, n: int, bound: float, nodes: int = 400) -> float:
    """E[ceil(log2 |M(U)|)] with the paper's own cell, for updates of l2 norm at most `bound`."""
    check_scale("bound", bound)
    radii = law.radius_below((np.arange(nodes) + 0.5) / nodes, n) * law.scale
    return float(np.mean([math.ceil(math.log2(paper_points(n, 1.0 + bound / r))) for r in radii]))


def reachable_point_bits(law: Law, lattice: Lattice, bound: float, nodes: int = 400) -> float:
    """E[ceil(log2 |M(U)|)] with M(U) itself in place of a box around it, for updates of l2 norm at most `bound`."""
    if law.norm != "l2" and lattice.dimension > 1:
        raise ValueError(f"points are listed for laws whose superlevel sets are l2 balls, got {law!r}")
    check_scale("bound", bound)
    middle = (np.arange(nodes) + 0.5) / nodes
    radii = law.radius_below(middle, lattice.dimension) * law.scale
    return float(np.mean([math.ceil(math.log2(reachable_points(lattice, 1.0 + bound / r))) for r in radii]))


def code_bits(codec: Codec, update: npt.NDArray[np.float64], at: Address) -> int:
    """The bits of a real message of one block, less header, seal and size field (up to 7 bits fill the last byte)."""
    if wire.count_blocks(len(update), codec.on.dimension) != 1:
        raise ValueError(f"the update must fit one block of the format, got {len(update)} coordinates")
    contents = wire.Contents(len(update), double=True, searched=False, blocks=[b""])
    empty = wire.seal(contents, at.derive(), codec.fingerprint)
    return 8 * (len(codec.encode(update, at)) - len(empty))
