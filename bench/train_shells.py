"""Makes the vector coder's tables from `bench/data/train.npz`; writes `src/cepam/kernels/format/tables/vector.npz`.

Means: E|x| in units of the local scale, given how far the decoded point lies from the ball, by Monte Carlo; not from
data, since a trained mean feeds back into the scale it is relative to. Priors: the blocks of every training set and
noise level are coded in random order with one table that is never reset; its average over the course is the prior.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cepam
from cepam.kernels.format import vector_contexts as c
from cepam.kernels.format.plan import Plan, cell_plan, key_words, layered_plan
from cepam.kernels.numba.compiling import kernel_plan, scratch_for
from cepam.kernels.numba.vector_coder import ROW_BYTES, code_rows
from symbols import address
from train_priors import CONTROLS, SIGMAS, STEPS

TABLE = Path(__file__).parents[1] / "src" / "cepam" / "kernels" / "model" / "tables" / "vector.npz"
LATTICES = {
    2: (cepam.A2, cepam.Integer(2)),
    3: (cepam.Integer(3),),
    4: (cepam.D4, cepam.Integer(4)),
    5: (cepam.Integer(5),),
    8: (cepam.E8,),
}
SAMPLES = 2_000_000
ROW_SPREAD = 0.7


def plans(accept: int, n: int, sigma: float) -> list[Plan]:
    """The quantizers that a table is trained on, at one noise level."""
    if accept == 2:
        return [cell_plan(lattice, sigma * 12**0.5) for lattice in LATTICES[n]]
    law = cepam.Laplace(sigma / 2**0.5) if accept == 0 else cepam.Gaussian(sigma)
    return [layered_plan(law, lattice) for lattice in LATTICES[n]]


def uniform_in_ball(draw: np.random.Generator, count: int, n: int, accept: int) -> np.ndarray:
    """Points uniform in the unit ball of the law's norm, one a row."""
    if accept == 0:
        points = draw.laplace(size=(count, n))
        return points / np.abs(points).sum(axis=1, keepdims=True) * draw.random((count, 1)) ** (1 / n)
    points = draw.normal(size=(count, n))
    return points / np.linalg.norm(points, axis=1, keepdims=True) * draw.random((count, 1)) ** (1 / n)


def posterior_means(accept: int, n: int) -> np.ndarray:
    """E|x| over the local scale (in 1/256), for Laplace entries whose rows differ in scale, in every mean context."""
    draw = np.random.default_rng(n)
    total, seen = np.zeros(c.MEANS), np.zeros(c.MEANS)
    widen = LATTICES[n][0].acceptance("l2") ** (-1 / n) if accept == 2 else 1.0
    for _ in range(SAMPLES // 100_000):
        radius = 2 ** draw.uniform(-4, 9, 100_000)
        spread = np.exp(ROW_SPREAD * draw.normal(size=100_000) - ROW_SPREAD**2 / 2)
        x = draw.laplace(size=(100_000, n)) * spread[:, None]
        y = x + uniform_in_ball(draw, 100_000, n, accept) * (radius * widen)[:, None]
        length = np.abs(y).sum(axis=1) if accept == 0 else np.linalg.norm(y, axis=1)
        at = place(length, radius)
        total += np.bincount(at, np.abs(x).mean(axis=1), c.MEANS)
        seen += np.bincount(at, minlength=c.MEANS)
    means = total / np.maximum(seen, 1)
    for at in np.flatnonzero(seen < 30):
        inside, mark, wide = at // (c.MEAN_MARKS * c.WIDES), at // c.WIDES % c.MEAN_MARKS, at % c.WIDES
        length = 2 ** (mark / 2 - 5.75) + 2 ** (wide - 1.5)
        means[at] = 1.0 if inside else max(0.8 * length / (n if accept == 0 else n**0.5), 1.0)
    return np.rint(256 * means).astype(np.int64)


def place(length: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The mean contexts of these lengths and radii, in units of the local scale."""
    mark = np.clip(np.floor(2 * (np.log2(np.abs(radius - length) + 1e-9) + 6)), 0, c.MEAN_MARKS - 1)
    wide = np.clip(np.floor(np.log2(radius) + 2), 0, c.WIDES - 1)
    return ((np.where(length <= radius, c.MEAN_MARKS, 0) + mark) * c.WIDES + wide).astype(np.int64)


def gather(accept: int, n: int) -> list[tuple[Plan, np.ndarray, int]]:
    """The blocks of all training sets and noise levels, in random order."""
    rows = np.load(Path(__file__).parent / "data" / "train.npz")
    blocks = []
    for name, step in (STEPS | CONTROLS).items():
        for sigma in (1.0, *SIGMAS):
            for plan in plans(accept, n, sigma):
                for number, x in enumerate(rows[name][:: step * len(LATTICES[n])]):
                    units = np.zeros((-(-len(x) // n), n), dtype=np.int64)
                    units.reshape(-1)[: len(x)] = np.trunc(x.astype(np.float64) / plan.unit)
                    blocks.append((plan, units, number))
    return [blocks[i] for i in np.random.default_rng(0).permutation(len(blocks))]


def train(blocks: list[tuple[Plan, np.ndarray, int]], means: np.ndarray) -> np.ndarray:
    """The adaptive probabilities, averaged over their second course through all blocks without a reset."""
    odds, total = np.full(c.CONTEXTS, 1 << 15, np.uint16), np.zeros(c.CONTEXTS)
    for lap in range(2):
        for plan, x, number in blocks:
            scratch, key = scratch_for(plan, c.CONTEXTS), key_words(address(number).derive().noise)
            out = np.empty(len(x) * ROW_BYTES + 16, np.uint8)
            code_rows(kernel_plan(plan), scratch, key, x, 0, False, (odds, means), out)
            odds = scratch.odds.copy()
            total += lap * odds
    return np.rint(total / len(blocks)).astype(np.uint16)


def main() -> None:
    count = 3 * len(c.CLASSES)
    prior, means = np.zeros((count, c.CONTEXTS), np.uint16), np.zeros((count, c.MEANS), np.int32)
    for accept in range(3):
        for n in c.CLASSES:
            at = c.table_number(accept, n)
            means[at] = posterior_means(accept, n)
            prior[at] = train(gather(accept, n), means[at].astype(np.int64))
            print(f"acceptance {accept}, dimension {n}: done", flush=True)
    np.savez_compressed(TABLE, prior=prior, means=means)
    print(f"{TABLE.name}: {TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
