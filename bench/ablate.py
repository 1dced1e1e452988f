"""What each part of the scalar model is worth: the model with one part taken out, trained and measured again.

A part is taken out by replacing its line of `kernels/numba/scalar_coder.py`, so the figures are those of the shipped
code. Written to bench/results/ablation.json.
"""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import numpy as np
from numba import njit

from cepam.kernels.format import scalar_contexts as contexts
from cepam.kernels.format.row_period import find_period
from cepam.kernels.numba import range_coder, scalar_coder
from stamp import save
from symbols import BLOCK, scalar_symbols
from train_priors import CONTROLS, SIGMAS, STEPS, posterior_means

HERE = Path(__file__).parent
SETS = (("early_single", 0.01), ("late_single", 0.01), ("early_averaged", 0.01), ("early_single", 0.2))
SETS += (("early_single", 0.001), ("gaussian", 0.01), ("sparse", 0.01))
MODULES = ("range_coder", "scalar_coder", "compiling")
LEARN = "odds[at] = np.uint16(p + (((65535 if bit else 0) - p) >> rate))"
PARTS = {
    "everything": (),
    "no period (left neighbours only)": (("period > LOCAL", "period > 4000"),),
    "no local scale (block's scale only)": (("z = 15 * log(sized) + anchor", "z = 16 * anchor"),),
    "no signs": (("level = lean(signed if rise else -signed, sized)", "level = 4"),),
    "no zones": (("level += ZONE *", "level += 0 *"),),
    "width not in the zero context": (("within((wide + OCTAVE) >> 8, 5)", "2"),),
    "static probabilities": ((LEARN, "odds[at] = np.uint16(p + (((65535 if bit else 0) - p) >> LIVE))"),),
    "no prior (all at one half)": (),
}


def without_imports(text: str) -> str:
    """The source without what it imports from the other of the two modules, from `compiling` and from `__future__`."""
    lines, other = text.splitlines(), ("__future__", *(f"cepam.kernels.numba.{name}" for name in MODULES))
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module in other:
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    return "\n".join(lines)


def compile_without(changes: tuple) -> dict:
    """The names of `numba/range_coder.py` and `numba/scalar_coder.py` with some lines replaced."""
    sources = [without_imports(Path(each.__file__).read_text()) for each in (range_coder, scalar_coder)]
    text = "\n".join(["LIVE = 60", *sources])
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    uncached = partial(njit, nogil=True, error_model="numpy", _nrt=False)
    names: dict = {"__file__": scalar_coder.__file__, "__name__": "ablated"}
    names |= {"compiled": uncached(), "inlined": uncached(forceinline=True), "pasted": uncached(inline="always")}
    exec(compile(text, "ablated", "exec"), names)
    return names


def gather(part: str, sets: list) -> list:
    rows = np.load(HERE / "data" / f"{part}.npz")
    blocks = []
    for name, sigma, step in sets:
        for i, x in enumerate(rows[name][::step]):
            X, *shared = scalar_symbols(x, sigma, i + (1 if part == "train" else 5000))
            blocks.append((name, sigma, shared, scalar_coder.measure_scale(X), find_period(X)))
    return blocks


def train(names: dict, blocks: list, means: np.ndarray, out: np.ndarray) -> np.ndarray:
    odds, total = np.full(contexts.CONTEXTS, 1 << 15, np.uint16), np.zeros(contexts.CONTEXTS)
    work = scalar_coder.margins_for(BLOCK)
    for lap in range(2):
        for _, _, (M, B, D), scale, period in blocks:
            if names["encode_block"](M.copy(), B, D, scale, period, odds, means, work, out):
                odds = work.odds.copy()
            total += lap * odds
    return np.rint(total / len(blocks)).astype(np.uint16)


def main() -> None:
    steps = (STEPS | CONTROLS).items()
    fit = gather("train", [(name, sigma, 2 * step) for name, step in steps for sigma in SIGMAS])
    fit = [fit[i] for i in np.random.default_rng(0).permutation(len(fit))]
    test = gather("test", [(name, sigma, 8) for name, sigma in SETS])
    work = scalar_coder.margins_for(BLOCK)
    means, out = posterior_means(), np.empty(contexts.BYTES_A_COORDINATE * BLOCK + 16, np.uint8)
    rows = []
    print("bits per coordinate, coder alone\n\n| | " + " | ".join(f"{n} {s:g}" for n, s in SETS) + " |")
    print("|---" * (len(SETS) + 1) + "|")
    for part, changes in PARTS.items():
        names = compile_without(changes)
        teacher = compile_without(()) if part == "static probabilities" else names
        prior = train(teacher, fit, means, out)
        if part.startswith("no prior"):
            prior[:] = 1 << 15
        bits, count = dict.fromkeys(SETS, 0), dict.fromkeys(SETS, 0)
        for name, sigma, (M, B, D), scale, period in test:
            bits[name, sigma] += 8 * names["encode_block"](M.copy(), B, D, scale, period, prior, means, work, out)
            count[name, sigma] += M.size
        rows.append({"part": part, "bits_per_coordinate": [bits[s] / count[s] for s in SETS]})
        print(f"| {part} | " + " | ".join(f"{bits[s] / count[s]:.3f}" for s in SETS) + " |", flush=True)
    save("ablation", {"columns": [f"{name}, sigma {sigma:g}" for name, sigma in SETS], "rows": rows})


if __name__ == "__main__":
    main()
