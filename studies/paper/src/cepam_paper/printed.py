"""What the paper prints: its tables, its lists of noise, its quoted guarantees."""

from __future__ import annotations

GAUSSIAN_ROWS = (
    "fl", "fl+sdq", "fl+gaussian", "fl+gaussian+sdq", "cepam-gaussian-1", "cepam-gaussian-2", "cepam-gaussian-3",
)  # fmt: skip
LAPLACE_ROWS = ("fl", "fl+sdq", "fl+laplace", "fl+laplace+sdq", "cepam-laplace")

# Paper: Tables I and II: accuracy in per cent, its half-width, and the average SNR in dB (None: infinite).
ACCURACY: dict[str, tuple[float, float]] = {
    "fl": (93.24, 0.31),
    "fl+sdq": (93.28, 0.63),
    "fl+gaussian": (93.46, 0.70),
    "fl+gaussian+sdq": (93.18, 0.59),
    "cepam-gaussian-1": (94.11, 0.49),
    "cepam-gaussian-2": (94.06, 0.45),
    "cepam-gaussian-3": (93.86, 0.36),
    "fl+laplace": (93.43, 0.54),
    "fl+laplace+sdq": (93.25, 0.59),
    "cepam-laplace": (94.32, 0.40),
}
SNR: dict[str, float] = {
    "fl+sdq": 84.22,
    "fl+gaussian": 24.52,
    "fl+gaussian+sdq": 24.65,
    "cepam-gaussian-1": 8.15,
    "cepam-gaussian-2": 15.26,
    "cepam-gaussian-3": 19.76,
    "fl+laplace": 20.96,
    "fl+laplace+sdq": 21.21,
    "cepam-laplace": -1.582,
}
LABELS = {
    "fl": "FL",
    "fl-clipped": "FL, clipped",
    "fl-momentum": "FL, clipped, local momentum 0.9",
    "fl-server-momentum": "FL, server momentum 0.9",
    "fl-rate-0.4": "FL, clipped, rate 0.4",
    "fl+sdq": "FL+SDQ",
    "fl+gaussian": "FL+Gaussian",
    "fl+gaussian+sdq": "FL+Gaussian+SDQ",
    "cepam-gaussian-1": "CEPAM-Gaussian (n = 1)",
    "cepam-gaussian-2": "CEPAM-Gaussian (n = 2)",
    "cepam-gaussian-3": "CEPAM-Gaussian (n = 3)",
    "fl+laplace": "FL+Laplace",
    "fl+laplace+sdq": "FL+Laplace+SDQ",
    "cepam-laplace": "CEPAM-Laplace",
}

# Paper: Section V-B.
SIGMA, B, BASE_EPSILON = 0.01, 0.01, 5.9
QUOTED = (1.45, 9.69e-3)
QUOTED_LAPLACE = 2995.0
GRID_DELTA = 0.015

# Paper: Section V-C, the trade-off grids: epsilon and the noise that the paper derives from it.
GRIDS: dict[str, dict[float, float]] = {
    "gaussian": dict(
        zip(
            (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
            (0.13881, 0.08567, 0.06058, 0.04447, 0.03274, 0.02362, 0.01623, 0.01011, 0.00494, 0.00052),
        )
    ),
    "laplace": dict(
        zip(
            (500.0, 1000.0, 1500.0, 2000.0, 2500.0, 3000.0, 3500.0, 4000.0, 4500.0, 5000.0),
            (0.05944, 0.029859, 0.019937, 0.014965, 0.011977, 0.009984, 0.00856, 0.007491, 0.00666, 0.005994),
        )
    ),
}
KNEE = {"gaussian": 2.5, "laplace": 1500.0}
