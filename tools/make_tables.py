"""Write the radius tables that the package ships: `python tools/make_tables.py` (about a minute and a half)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cepam.distributions.radius import tabulate_exactly

SHIPPED = [("gaussian", n) for n in (1, 2, 3, 4, 8)] + [("laplace", n) for n in (1, 2, 3, 4, 8)]
FOLDER = Path(__file__).parent.parent / "src" / "cepam" / "distributions" / "tables"

if __name__ == "__main__":
    for name, n in SHIPPED:
        np.savez_compressed(FOLDER / f"{name}-{n}.npz", table=tabulate_exactly(name, n))
        print(f"{name} in dimension {n}: written", flush=True)
