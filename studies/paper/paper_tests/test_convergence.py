"""The convergence part at a small effort: it is whole, repeats itself, and its verdicts follow its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.distributions.laws import Gaussian
from cepam_paper import document
from cepam_paper import section as part
from cepam_paper.convergence import Effort, assemble
from cepam_paper.convergence_sweep import KINDS, SWEEPS, Case, cases, train, vary
from cepam_paper.proof_repairs import repairs

TINY = Effort(rounds=12, repetitions=4, draws=600, messages=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, part.Part, list[tuple[str, int, int]]]:
    report, heard = tmp_path_factory.mktemp("report"), []
    return report, assemble(report, TINY, lambda what, done, total: heard.append((what, done, total))), heard


def test_the_part_is_whole(made: tuple[Path, part.Part, list[tuple[str, int, int]]]) -> None:
    report, found, heard = made
    assert found.name == "convergence"
    assert found.command == "cepam reproduce convergence"
    assert len(found.numbers["cases"]) == len(list(cases())) == len(found.tables[1].rows)
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for figure in found.figures:
        assert (report / figure.file).stat().st_size > 10_000
    done = [step for _, step, _ in heard]
    assert done == sorted(done)
    assert heard[-1][1] == heard[-1][2]
    found.save(report)
    assert part.load(report, "convergence") == found


def test_the_verdicts(made: tuple[Path, part.Part, list[tuple[str, int, int]]]) -> None:
    numbers = made[1].numbers
    assert numbers["repaired_bound_held_everywhere"] is True
    assert numbers["weight_distance_printed_violated"] is True
    assert numbers["weight_distance_repaired_held"] is True
    assert numbers["clipping_counterexample_repaired_held"] is True
    assert numbers["induction_printed_violated"] is True
    assert numbers["one_step_printed_violated"] is True
    assert numbers["offset"]["printed_violated"] is True
    assert 1000 < numbers["clipping_counterexample_T"] < 1500
    assert numbers["moment_worst_z"] < 4.5
    assert all(abs(one["z_of_kept"]) < 4.5 for one in numbers["moments"].values())
    assert numbers["lemma_12"]["measured"] > 5 * numbers["lemma_12"]["printed"]
    assert abs(numbers["lemma_12"]["z_of_repaired"]) < 4.5, "nearly attained"
    assert numbers["lemma_12"]["printed"] == pytest.approx(0.101)
    assert 0 < numbers["lemma_13"]["worst"] < 1
    assert numbers["exponential_holds_up_to"] == pytest.approx(1.594, abs=1e-3)
    assert document.unbacked([made[1]]) == ()
    assert [one["holds"] for one in numbers["exponential"].values()] == [True, False, False]
    assert numbers["mean_update"]["idle"]["z"] < 4.5 < numbers["mean_update"]["active"]["z"]
    psi = numbers["psi"]["by_records"]
    assert psi["6000"]["weighted"] < psi["60"]["weighted"] / 10
    assert psi["6000"]["printed"] < -1
    assert numbers["projections"] == 0
    for values in numbers["rate"].values():
        assert values["measured"] == pytest.approx(values["spent"], abs=0.05)


def test_training_repeats_itself_and_a_bound_can_fail() -> None:
    case = Case("least squares", law=Gaussian(0.2), clients=3, steps=2)
    one, two = train(case, 10, 3, seed=5), train(case, 10, 3, seed=5)
    assert (one.mean == two.mean).all()
    assert one.held
    # Control: a bound a hundred thousand times smaller is seen to fail.
    assert not replace(one, bound=one.bound * 1e-5).held
    assert not replace(one, printed=np.zeros_like(one.printed)).printed_held


def test_every_value_of_a_sweep_has_its_case() -> None:
    labels = [case.label for case in cases()]
    assert len(labels) == len(set(labels))
    for kind in KINDS:
        for name, values in SWEEPS.items():
            assert {vary(kind, name, value).label for value in values} <= set(labels)


def test_repairs_are_complete_sentences_in_a_table() -> None:
    assert all(all(cell for cell in row) and len(row) == 4 for row in repairs().rows)
