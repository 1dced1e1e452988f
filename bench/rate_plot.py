"""Bits per coordinate against noise: every lattice, both coders, floors and rivals.

`python bench/rate_plot.py` measures whole messages, writes `bench/results/rate.json` and `docs/img/rate.png`;
`--draw` only draws what the JSON holds. `--sizes` measures i.i.d. vectors from 6,422 to 10 million coordinates instead,
for bench/results/rate_sizes.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import cepam
import peers
from stamp import save
from symbols import address

HERE = Path(__file__).parent
RESULT, IMAGE = HERE / "results" / "rate.json", HERE.parent / "docs" / "img" / "rate.png"
SIGMAS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
LATTICES = ("Z1", "A2", "D4", "E8")
DATA = {"early_single": "gradients, early training", "gaussian": "i.i.d. Gaussian entries"}
FLOORS = {
    "H(M | U, V), n = 1": peers.scheme_floor,
    "H(H, M | U, V), E8": peers.eight_floor,
    "I(X; X + Z)": peers.information,
    "Gaussian + SDQ, ideal code": peers.noise_then_dither,
    "shifted layered, ideal code": peers.shifted_layered,
}
COLOURS = {"Z1": "tab:blue", "A2": "tab:green", "D4": "tab:orange", "E8": "tab:red"}
SIZE_SIGMAS = (0.2, 0.01, 0.001)
SIZES = (6_422, 65_536, 1_000_000, 10_000_000)


def rate(codec: cepam.Codec, rows: np.ndarray) -> float:
    """8 * len(message) / m."""
    return 8 * sum(len(codec.encode(x, address(i))) for i, x in enumerate(rows)) / rows.size


def measure() -> dict:
    """All curves of all data sets."""
    curves: dict = {}
    for data in DATA:
        every = np.load(HERE / "data" / "test.npz")[data]
        rows = every[:: max(len(every) // 8, 1)]
        lines: dict = {}
        for name in LATTICES:
            codecs = [cepam.Codec(cepam.Gaussian(s), name, coder="layered") for s in SIGMAS]
            papers = [cepam.Codec(cepam.Gaussian(s), name, coder="paper", bound=1.0 + 1e-6) for s in SIGMAS]
            lines[f"{name}, adaptive"] = [rate(codec, rows) for codec in codecs]
            lines[f"{name}, paper"] = [rate(codec, rows[:2]) for codec in papers]
        lines["default"] = [rate(cepam.Codec(cepam.Gaussian(s)), rows) for s in SIGMAS]
        for name, floor in FLOORS.items():
            fine = name.endswith("E8")
            lines[name] = [floor(rows, s) if not fine or s >= 0.05 else float("nan") for s in SIGMAS]
            print(data, name, [round(v, 4) for v in lines[name]], flush=True)
        curves[data] = lines
    return curves


def draw(result: dict) -> None:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
    for panel, (data, title) in zip(panels, DATA.items()):
        lines = result["bits_per_coordinate"][data]
        for name, colour in COLOURS.items():
            panel.plot(SIGMAS, lines[f"{name}, adaptive"], color=colour, marker="o", ms=3, label=f"{name}, adaptive")
            panel.plot(SIGMAS, lines[f"{name}, paper"], color=colour, ls="--", lw=1, label=f"{name}, paper's code")
        styles = zip(
            FLOORS, ((0, (1, 1)), (0, (1, 1)), "-", "-.", "-."), ("k", "tab:red", "0.6", "tab:purple", "tab:cyan")
        )
        for name, style, colour in styles:
            panel.plot(SIGMAS, lines[name], ls=style, color=colour, lw=1.4, label=name)
        panel.axhline(32, color="0.4", lw=1, label="float32")
        panel.set(xscale="log", yscale="log", xlabel="noise sigma (update of l2 norm 1, m = 6,422)", title=title)
        panel.set_ylim(2e-3, 50)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("bits per coordinate, whole message")
    panels[1].legend(fontsize=7, loc="lower left", ncol=2)
    figure.tight_layout()
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=110)


def sizes() -> None:
    """A table of i.i.d. vectors of growing size, every one of rms 0.0125 as if cut from a long update."""
    rows = []
    print("| entries | m | " + " | ".join(f"Z1 {s:g} | E8 {s:g}" for s in SIZE_SIGMAS) + " |")
    print("|---" * 8 + "|")
    for kind in ("Gaussian", "Laplace", "95 % zeros"):
        for m in SIZES:
            draws = np.random.default_rng(m)
            x = (draws.laplace(size=m) if kind == "Laplace" else draws.standard_normal(m)).astype(np.float32)
            if kind.startswith("95"):
                x *= draws.random(m) < 0.05
            x *= np.float32(0.0125 / np.sqrt(np.mean(np.square(x, dtype=np.float64))))
            cells: list[float] = []
            for sigma in SIZE_SIGMAS:
                for lattice in (cepam.Integer(1), cepam.E8):
                    part = x if lattice.dimension == 1 else x[:1_000_000]
                    cells.append(rate(cepam.Codec(cepam.Gaussian(sigma), lattice, coder="layered"), part[None]))
            rows.append({"entries": kind, "coordinates": m, "bits_per_coordinate": cells})
            print(f"| {kind} | {m:,} | " + " | ".join(f"{each:.3f}" for each in cells) + " |", flush=True)
    columns = [f"{lattice}, sigma {s:g}" for s in SIZE_SIGMAS for lattice in ("Z1", "E8")]
    save("rate_sizes", {"columns": columns, "rows": rows})


def main() -> None:
    if "--sizes" in sys.argv:
        sizes()
        return
    if "--draw" not in sys.argv:
        save(RESULT, {"sigmas": SIGMAS, "bits_per_coordinate": measure()})
    draw(json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main()
