"""Every training part at a tiny size: the numbers that the verdicts read are there and agree with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepam_paper import bits, document, exactness, gain, grid, guarantees, tables, tradeoff, variations
from cepam_paper.estimate import differences, estimate, words
from cepam_paper.run_size import Extent, RunSize
from cepam_paper.section import Part, load


def quiet(doing: str, done: int, of: int) -> None:
    assert 0 <= done <= of


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the module, so that parts share their runs as they do in a real reproduction."""
    return tmp_path_factory.mktemp("report")


def check(part: Part, report: Path) -> dict[str, Any]:
    """The part's numbers, after what holds for every part."""
    part.save(report)
    assert load(report, part.name) == part
    assert all((report / figure.file).stat().st_size > 1000 for figure in part.figures)
    assert all(len(row) == len(table.columns) for table in part.tables for row in table.rows)
    assert not document.unbacked([part])
    return part.numbers


def test_tables(tiny: RunSize, report: Path) -> None:
    numbers = check(tables.gaussian(report, Extent.QUICK, quiet), report)
    assert numbers["parameters"] == 6422
    assert set(numbers["accuracy"]) == {"text", "published", "correct"}
    assert set(numbers["difference"]["correct"]["cepam-gaussian-1"]) >= {"fl", "fl+sdq", "cepam-gaussian-3"}
    noise = numbers["snr_db"]["correct"]
    assert noise["fl+sdq"] > noise["fl+gaussian"] + 20
    assert set(numbers["program_snr_db"]["published"]) >= {"fl+sdq", "fl+gaussian", "cepam-gaussian-3"}
    assert numbers["program_snr_db"]["correct"]["fl+sdq"] == numbers["program_snr_db"]["published"]["fl+sdq"]
    assert "fl" not in numbers["program_snr_db"]["published"], "nothing clipped, nothing added: no ratio"
    assert numbers["sent_norm"]["text"]["cepam-gaussian-1"] <= 1 + 1e-5
    assert "fl-server-momentum" in numbers["accuracy"]["text"]
    assert "fl-server-momentum" not in numbers["accuracy"]["published"], "the program applies no momentum"
    assert numbers["program_snr_db"]["correct"]["fl+sdq"]["low"] is None, "two seeds have no interval of a median"
    assert "fl-rate-0.4" in numbers["accuracy"]["correct"]
    laplace = check(tables.laplace(report, Extent.QUICK, quiet), report)
    assert laplace["accuracy"]["correct"]["fl"] == numbers["accuracy"]["correct"]["fl"]


def test_gain(tiny: RunSize, report: Path) -> None:
    numbers = check(gain.run(report, Extent.QUICK, quiet), report)
    assert numbers["gain"]["cepam-gaussian-1"] == pytest.approx(1.2732, abs=1e-4)
    assert numbers["claimed"]["cepam-gaussian-1"] == pytest.approx(0.87)
    over, published, rate = (
        numbers["difference"][arm]["cepam-laplace"]["mean"] for arm in ("published_over_rate", "published", "rate")
    )
    assert over == pytest.approx(published - rate)


def test_grid(tiny: RunSize, report: Path) -> None:
    numbers = check(grid.run(report, Extent.QUICK, quiet), report)
    assert list(numbers["gaussian"]["accuracy"]) == ["0.5", "2.5", "5"]
    assert numbers["gaussian"]["error_swapped"] < 0.01 < numbers["gaussian"]["error_right_order"]
    assert numbers["laplace"]["error_fitting"] < 1e-3 < numbers["laplace"]["error_printed"]
    assert set(numbers["gaussian"]["real_epsilon_round"].values()) == {0.0}, (
        "sampling alone is within the paper's delta"
    )
    assert numbers["laplace"]["real_epsilon_round"]["500"] == pytest.approx(2692, abs=1)
    rises = [numbers["gaussian"][f"rise{end}_published"]["mean"] for end in ("_before", "_after", "")]
    assert rises[0] + rises[1] == pytest.approx(rises[2])


def test_real_epsilon_is_that_of_the_whole_run() -> None:
    assert grid.real_epsilon("laplace", 0.01, 1) == pytest.approx(16022.8, abs=0.1)
    assert grid.real_epsilon("laplace", 0.01, 80) == pytest.approx(80 * 16022.8, rel=1e-5)
    assert grid.real_epsilon("gaussian", 0.13881, 80) > 1.0


def test_tradeoff(tiny: RunSize, report: Path) -> None:
    numbers = check(tradeoff.run(report, Extent.QUICK, quiet), report)
    for scheme in tradeoff.SCHEMES:
        assert numbers["epsilon"][scheme]["0.5"] <= 0.5
        assert numbers["epsilon"][scheme]["8"] <= 8.0
        assert numbers["noise"][scheme]["0.5"] > numbers["noise"][scheme]["8"]
    again = tradeoff.run(report, Extent.QUICK, quiet)
    assert again.numbers == numbers
    assert numbers["repetitions"] == "budgets"
    assert any("budgets of one seed" in note for note in again.notes)


def test_guarantees_against_known_values(report: Path) -> None:
    numbers = check(guarantees.run(report, Extent.QUICK, quiet), report)
    quoted = numbers["quoted"]
    assert quoted["fitting_delta"] == pytest.approx(9.69e-3, abs=5e-6)
    assert quoted["saturated_delta"] == pytest.approx(quoted["fitting_delta"], rel=1e-3)
    assert quoted["delta_without_noise_run"] == pytest.approx(0.513, abs=1e-3)
    assert quoted["epsilon_run"] == pytest.approx(4150, rel=0.01)
    assert quoted["sigma_needed"] == pytest.approx(0.28645, abs=1e-4)
    assert numbers["theorem_8"]["true_epsilon"] == pytest.approx(16022.8, abs=0.1)
    first = numbers["theorem_7"]
    assert first["printed_delta"] < first["true_delta"] <= first["repaired_delta"] + 1e-9


def test_exactness_passes_ours_and_fails_the_published(tiny: RunSize, report: Path) -> None:
    numbers = check(exactness.run(report, Extent.QUICK, quiet), report)
    assert all(found["passed"] for found in numbers["ours"].values())
    assert not any(found["passed"] for found in numbers["published"].values())
    assert numbers["published"]["gaussian-1"]["gain"] == pytest.approx(1.273, abs=0.02)
    for found in numbers["dithered"].values():
        assert min(found.values()) > 1e-3
    assert all(abs(found["z"]) < 4.5 for found in numbers["acceptance"].values())
    assert numbers["special_case"]["equal"] == numbers["special_case"]["of"] > 0


def test_rate(tiny: RunSize, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3).normal(size=(4, 6422)) * (np.random.default_rng(4).random((4, 6422)) < 0.1)
    rows = (draw / np.linalg.norm(draw, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(bits, "gradients", lambda rounds, clients: rows)
    numbers = check(bits.run(report, Extent.QUICK, quiet), report)
    for name, formula in numbers["formula"].items():
        assert numbers["paper_code"][name] == pytest.approx(formula["repaired"], rel=0.03)
        assert formula["printed"] < formula["ideal"] <= formula["repaired"]
        assert numbers["adaptive"][name] < numbers["paper_code"][name]
    assert [round(numbers["own_by_sigma"]["0.01"][n], 2) for n in ("1", "2", "3")] == [6.66, 6.61, 6.20]
    assert numbers["own_by_sigma"]["0.05"]["2"] > numbers["own_by_sigma"]["0.05"]["1"]
    for n, own in numbers["own_code"].items():
        assert own["spent"] == pytest.approx(numbers["own_by_sigma"]["0.01"][n], rel=0.01)
        assert own["printed"] <= own["formula"] <= own["spent"] + 0.01
    assert [bit for _, bit in numbers["by_sigma"]] == sorted((bit for _, bit in numbers["by_sigma"]), reverse=True)


def test_variations(tiny: RunSize, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "gradients", lambda rounds, clients: np.full((2, 6422), 1e-3, dtype=np.float32))
    numbers = check(variations.run(report, Extent.QUICK, quiet), report)
    assert numbers["precision"]["median"] == pytest.approx(1e-3)
    for found in numbers["inside"].values():
        assert found["rise"]["low"] > 0, "the server's step leaves the local steps behind"
        assert found["largest_change"]["high"] < 0, "every local step brings the mean nearer"
        assert found["bound_held"]
    assert numbers["inside"]["15"]["after"] < numbers["inside"]["15"]["start"]


def test_estimates() -> None:
    value = estimate([1.0, 2.0, 3.0])
    assert value["mean"] == 2.0
    assert words(value) == "2.00 ± 2.48"
    assert words(estimate([1.0]), sign=True) == "+1.00"
    assert differences([0.9, 0.8], [0.8, 0.9]) == pytest.approx([10.0, -10.0])
