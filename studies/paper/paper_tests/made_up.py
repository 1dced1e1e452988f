"""Parts with made-up numbers that look like what the experiments are expected to find, and a picture."""

from __future__ import annotations

import copy
import struct
import zlib
from pathlib import Path
from typing import Any

from cepam_paper.section import Figure, Part, Table

Numbers = dict[str, Any]


def near(mean: float, half: float = 0.2) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "seeds": 10}


def middle(value: float, half: float = 0.2) -> dict[str, float]:
    return {"median": value, "low": value - half, "high": value + half, "seeds": 10}


def _exactness() -> Numbers:
    ours = {"passed": True, "p": 0.21, "independence_p": 0.4, "ratio": 1.0003}
    names = ("gaussian-1", "gaussian-2", "gaussian-3", "laplace-1", "gaussian-E8")
    theirs = {"passed": False, "p": 1e-300, "ratio": 0.5, "ratio_at_input": 5.6, "gain": 1.273}
    return {
        "false_alarm": 1e-3,
        "ours": {name: dict(ours) for name in names},
        "published": {name: dict(theirs) for name in names[:4]},
        "dithered": {"Z1": {"uniform_p": 0.3, "independent_p": 0.6}, "E8": {"uniform_p": 0.9, "independent_p": 0.2}},
        "acceptance": {"Z2": {"volumes": 0.5027, "measured": 0.5031, "z": 0.4}},
        "special_case": {"equal": 10_000, "of": 10_000},
    }


def _privacy() -> Numbers:
    return {
        "theorem_7": {
            "case": "K 30, no noise", "epsilon": 0.01, "printed_delta": 8.4e-3, "true_delta": 8.97e-3,
            "repaired_delta": 8.97e-3,
        },
        "quoted": {
            "epsilon": 1.45, "delta": 9.69e-3, "computed_epsilon": 1.398, "computed_delta": 8.997e-3,
            "fitting_epsilon": 1.45019, "fitting_delta": 9.68874e-3, "delta_one_round": 8.97e-3,
            "delta_without_noise": 8.97e-3, "delta_without_noise_run": 0.513, "epsilon_run": 4154.31,
            "epsilon_run_quoted_delta": 1e308, "sigma_needed": 0.28645,
        },
        "theorem_8": {"printed_epsilon": 2995.29, "true_epsilon": 16022.8, "true_epsilon_l1": 195.3},
        "quantized_noise": {
            "epsilon": 1.0, "shift": 1.0, "fine_step": 0.1, "coarse_step": 3.46, "none": 0.1269, "fine": 0.1268,
            "coarse": 0.04,
        },
        "relaxed": {"b": 40.0, "rounds": 80, "pure_epsilon": 31.5754, "epsilon": 1.91424, "delta": 1e-5},
    }  # fmt: skip


def _rate() -> Numbers:
    return {
        "sigma": 0.01,
        "coordinates": 6422,
        "own_by_sigma": {"0.01": {"1": 6.66, "2": 6.61, "3": 6.20}, "0.05": {"1": 4.50, "2": 4.51, "3": 4.13}},
        "adaptive_by_sigma": {"0.01": {"1": 0.49, "2": 0.69, "3": 0.68}, "0.05": {"1": 0.17, "2": 0.3, "3": 0.3}},
        "own_code": {
            "1": {"spent": 6.64, "formula": 6.64, "printed": 0.0},
            "2": {"spent": 6.61, "formula": 6.45, "printed": 0.4},
            "3": {"spent": 6.21, "formula": 6.20, "printed": 0.6},
        },
        "adaptive": {"1": 0.56, "2": 0.71, "3": 0.9, "E8": 0.6},
        "by_sigma": [[0.001, 1.8], [0.01, 0.56], [0.2, 0.08]],
    }


def _accuracy(law: str) -> Numbers:
    cepam = [f"cepam-gaussian-{n}" for n in (1, 2, 3)] if law == "gaussian" else ["cepam-laplace"]
    baselines = ["fl", "fl+sdq", f"fl+{law}", f"fl+{law}+sdq"]
    rows = (*baselines, *cepam)
    pairs = {row: {base: None for base in (*baselines, *cepam) if base != row} for row in cepam}
    return {
        "seeds": 10, "rounds": 80, "parameters": 6422,
        "paper": {row: {"mean": 94.1 if row in cepam else 93.3, "half": 0.5} for row in rows},
        "paper_snr_db": dict.fromkeys(rows[1:], 8.15),
        "accuracy": {
            "text": {row: near(23.0) for row in (*rows, "fl-server-momentum")},
            "published": {row: near(94.0 if row in cepam else 93.1) for row in rows},
            "correct": {row: near(92.1) for row in rows} | {"fl-rate-0.4": near(93.3)},
        },
        "difference": {
            "published": {row: {base: near(1.1) for base in pairs[row]} for row in cepam},
            "correct": {row: {base: near(0.05) for base in pairs[row]} for row in cepam},
        },
        "snr_db": {reading: dict.fromkeys(rows[1:], 12.3) for reading in ("published", "correct")},
        "program_snr_db": {
            "published": {row: middle(7.9) for row in rows[1:]}, "correct": {row: middle(22.2) for row in rows[1:]},
        },
        "sent_norm": {"text": {"cepam-gaussian-1": 1.0}, "published": {"cepam-gaussian-1": 2.4}},
    }  # fmt: skip


def _gain() -> Numbers:
    rows = ("cepam-gaussian-1", "cepam-gaussian-2", "cepam-gaussian-3", "cepam-laplace")
    kinds = {"published": 1.1, "rate": 1.18, "published_over_rate": -0.08, "divided": -0.1}
    return {
        "gain": dict.fromkeys(rows, 1.273),
        "difference": {kind: {row: near(mean) for row in rows} for kind, mean in kinds.items()},
    }


def _grid() -> Numbers:
    def one(labels: list[str], delta: float) -> Numbers:
        return {
            "real_delta": delta, "real_epsilon": {label: 1e4 / float(label) + 5000 for label in labels},
            "real_epsilon_round": {label: 0.0 if delta else 5.384 * float(label) for label in labels},
            "accuracy_published": {label: near(92.5) for label in labels},
            "difference": near(-0.5), "difference_published": near(0.9), "rise": near(2.0), "rise_before": near(1.9),
            "rise_after": near(0.1), "rise_published": near(7.0), "rise_before_published": near(6.9),
            "rise_after_published": near(0.1),
        }  # fmt: skip

    gaussian = one([f"{0.5 * i:g}" for i in range(1, 11)], 0.015)
    laplace = one([f"{500 * i:g}" for i in range(1, 11)], 0.0)
    gaussian |= {"error_right_order": 1.0, "error_swapped": 4e-5}
    laplace |= {"error_printed": 0.07, "error_fitting": 2e-4, "drop": near(0.0), "drop_published": near(0.4)}
    return {"gaussian": gaussian, "laplace": laplace}


def _tradeoff() -> Numbers:
    budgets = ("0.5", "1", "2", "4", "8")
    return {
        "delta": 1e-5, "seeds": 5,
        "accuracy": {s: {b: near(96.0) for b in budgets} for s in ("cepam-gaussian", "fl+gaussian+sdq")},
        "difference": {b: near(0.01) for b in budgets}, "difference_all": near(0.01), "rise": near(3.0),
        "bits": {"cepam-gaussian": dict.fromkeys(budgets, 0.117), "fl+gaussian+sdq": dict.fromkeys(budgets, 1.2)},
        "epsilon": {"cepam-gaussian": {b: float(b) for b in budgets}},
    }  # fmt: skip


def _convergence() -> Numbers:
    case = {"psi_printed": -5.6, "Gamma": 0.04, "bound_over_gap": 75.0, "held": True, "printed_held": True}
    return {
        "moment_worst_z": 2.1, "moments": {
            "gaussian on Z1": {"z": 0.3, "printed": 0.5, "all": 0.5001},
            "gaussian on E8": {"z": -1.2, "printed": 0.56, "all": 0.5597},
        },
        "psi": {
            "by_records": {
                "60": {"printed": -4.1, "weighted": 0.04}, "600": {"printed": -4.5, "weighted": 0.004},
                "6000": {"printed": -4.6, "weighted": 0.0004},
            },
            "by_heterogeneity": {
                "0": {"printed": -4.1, "weighted": 0.04}, "1": {"printed": -4.0, "weighted": 0.1},
                "3": {"printed": -3.0, "weighted": 0.2},
            },
        },
        "mean_update": {
            "draws": 20_000, "idle": {"clip": 2.0, "z": 1.9, "bias": 0.001, "norm": 0.7},
            "active": {"clip": 0.3, "z": 210.0, "bias": 0.4, "norm": 0.7},
        },
        "minibatch": {
            "held_everywhere": True, "cases": {
                "1": {"gap": 1e-4, "gap_low": 8e-5, "gap_high": 1.2e-4, "bound": 5e-3},
                "16": {"gap": 2e-5, "gap_low": 1e-5, "gap_high": 3e-5, "bound": 2e-3},
            },
        },
        "lemma_12": {"measured": 0.811, "measured_error": 3e-4, "printed": 0.101, "repaired": 0.8115},
        "lemma_13": {"worst": 0.02, "cases": 24},
        "exponential": {
            "5": {"x": 1.0, "left": 0.368, "right": 0.5, "holds": True},
            "10": {"x": 2.0, "left": 0.135, "right": 0.0, "holds": False},
            "15": {"x": 3.0, "left": 0.05, "right": -0.5, "holds": False},
        },
        "weight_distance_printed_violated": True, "weight_distance_repaired_held": True,
        "weight_distance": {
            "idle clip": {"measured": 0.001, "printed": 0.051, "repaired": 0.001},
            "equal gradients": {"measured": 0.81, "printed": 0.051, "repaired": 0.811},
        },
        "cases": {"least squares, K 10": dict(case), "logistic regression, K 10": {**case, "bound_over_gap": 900.0}},
        "offset": {"offset": 52.0, "printed_bound": 0.0, "measured_gap": 0.003, "printed_violated": True},
        "printed_bound_held_in_sweeps": True, "repaired_bound_held_everywhere": True,
        "clipping_counterexample_T": 1214, "clipping_counterexample_gap": 7.98, "clipping_counterexample_printed": 4.86,
    }  # fmt: skip


NUMBERS: dict[str, Numbers] = {
    "exactness": _exactness(), "privacy": _privacy(), "rate": _rate(), "gaussian": _accuracy("gaussian"),
    "laplace": _accuracy("laplace"), "gain": _gain(), "grid": _grid(), "tradeoff": _tradeoff(),
    "convergence": _convergence(),
    "variations": {
        "fluctuation": {"base": near(2.0), "both": near(0.5)},
        "change": {"averaged": near(-1.0), "falling": near(-0.9), "both": near(-1.5)},
        "difference_rise_before": near(3.0),
        "difference_rise_after": near(0.0),
        "inside": {"5": {"before": 0.2, "after": 0.4, "largest_change": near(-0.3), "bound_held": True}},
        "precision": {"alpha": 1e-3, "tenth": 1e-5, "median": 1e-3, "ninetieth": 1e-2},
    },
}  # fmt: skip


def part(name: str, numbers: Numbers | None = None, **fields: Any) -> Part:
    """A part of this name, with the made-up numbers unless others are given."""
    found = copy.deepcopy(NUMBERS.get(name, {})) if numbers is None else numbers
    given = {"title": f"The part {name}", "summary": f"What {name} found.\n\nA second paragraph.", "seeds": (1, 2)}
    return Part(name=name, command=f"cepam reproduce {name}", seconds=12.0, numbers=found, **(given | fields))


def whole(report: Path) -> tuple[Part, ...]:
    """All parts, each with a table and a figure whose picture lies in the report's folder."""
    (report / "figures").mkdir(parents=True, exist_ok=True)
    parts = []
    for shade, name in enumerate(NUMBERS):
        (report / "figures" / f"{name}.png").write_bytes(png(320, 200, 25 * shade))
        parts.append(
            part(
                name,
                tables=(
                    Table("t", f"A table of {name}", ("scheme", "accuracy"), (("fl", "92.10 ± 0.20"), ("x", "3")), "c"),
                ),
                figures=(Figure("f", f"A figure of {name}", f"figures/{name}.png", "What to see in it"),),
                notes=("A note with `code`.",),
            )
        )
    return tuple(parts)


def png(width: int, height: int, shade: int) -> bytes:
    """A grey picture, written by hand so that no library is needed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([shade]) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
