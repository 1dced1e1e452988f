"""For every verdict made-up data that turn it each way: holds, repaired, inconclusive, does not hold, program only."""

from __future__ import annotations

import pytest

from cepam_paper import claims
from cepam_paper.verdict import Label
from paper_tests.changes import Change, both, pass_all, put, put_all, put_rows, verdict, whole
from paper_tests.made_up import middle, near

HOLDS, REPAIRED, INCONCLUSIVE, FAILS, PROGRAM, UNTESTED = Label
PROVED = {"theta", "source"}


WIDE = near(0.2, 3.0)
"""An interval that contains 0 and every claimed effect."""
RISING = dict(zip(("0.5", "1", "2", "4", "8"), map(near, (91.7, 95.9, 97.2, 97.8, 98.0)), strict=True))
# Claim, part to change, the change, the label that follows. The made-up numbers as they stand are `BEFORE`.
FLIPS = [
    ("joint", "tradeoff", put("bits/cepam-gaussian/2", 33.0), FAILS),
    ("joint", "privacy", put("quoted/epsilon_run", 1.4), HOLDS),
    ("error-law", "exactness", put("ours/gaussian-2/passed", False), FAILS),
    ("any-law", "exactness", put("ours/laplace-1/passed", False), FAILS),
    ("pipeline", "tradeoff", put("difference_all", near(0.5)), HOLDS),
    ("pipeline", "tradeoff", put("difference_all", near(-0.5)), FAILS),
    ("tunable", "rate", put("by_sigma", [[0.01, 0.5], [0.1, 0.6]]), FAILS),
    ("coincides", "variations", put("difference_rise_after", near(4.0)), FAILS),
    ("coincides", "variations", put("difference_rise_before", WIDE), INCONCLUSIVE),
    ("sdq-error", "exactness", put("dithered/E8/uniform_p", 1e-9), FAILS),
    ("sdq-error", "exactness", put("dithered/Z1/independent_p", 1e-9), FAILS),
    ("acceptance", "exactness", put("acceptance/Z2/z", -9.0), FAILS),
    ("sdq-special", "exactness", put("special_case/equal", 9_999), FAILS),
    ("proposition-4", "exactness", put("ours/gaussian-E8/passed", False), FAILS),
    ("scalar-case", "exactness", put("ours/gaussian-1/passed", False), FAILS),
    ("clip", "gaussian", put("sent_norm/text/cepam-gaussian-1", 1.1), FAILS),
    ("shared-randomness", "exactness", put("ours/laplace-1/passed", False), FAILS),
    ("noisy-estimate", "exactness", put("ours/laplace-1/passed", False), FAILS),
    ("independent-errors", "exactness", put("ours/gaussian-E8/passed", False), FAILS),
    ("gaussian-noise", "exactness", put("ours/gaussian-3/passed", False), FAILS),
    ("laplace-noise", "exactness", put("ours/laplace-1/passed", False), FAILS),
    ("theorem-7", "privacy", put("theorem_7/printed_delta", 9e-3), HOLDS),
    ("theorem-7", "privacy", put("theorem_7/true_delta", 9.1e-3), FAILS),
    ("theorem-8", "privacy", put("theorem_8/true_epsilon", 2000.0), HOLDS),
    ("theorem-8", "privacy", put("theorem_8/true_epsilon_l1", 3000.0), FAILS),
    ("cost", "rate", put_all("own_code", 6.64), HOLDS),
    ("cost", "rate", put("own_code/2/spent", 7.5), FAILS),
    ("moment", "convergence", put("moment_worst_z", -7.0), FAILS),
    ("weight-distance", "convergence", put("weight_distance_printed_violated", False), HOLDS),
    ("weight-distance", "convergence", put("weight_distance_repaired_held", False), FAILS),
    ("psi", "convergence", put("psi/by_records/6000/weighted", 0.04), FAILS),
    ("psi", "convergence", put("psi/by_heterogeneity/3/weighted", 0.05), FAILS),
    ("psi", "convergence",
     both(put("psi/by_records/6000/printed", 1e-4), put("psi/by_heterogeneity/3/printed", 9.0)), HOLDS),
    ("convergence", "convergence", put("repaired_bound_held_everywhere", False), FAILS),
    ("convergence", "convergence", put("clipping_counterexample_printed", 9.0), HOLDS),
    ("convergence", "convergence", put("clipping_counterexample_T", None), HOLDS),
    ("convergence", "convergence", put("clipping_counterexample_gap", "?"), UNTESTED),
    ("unbiased", "convergence", put("mean_update/active/z", 2.0), HOLDS),
    ("unbiased", "convergence", put("mean_update/idle/z", 20.0), FAILS),
    ("lemma-12", "convergence", put("lemma_12/printed", 0.9), HOLDS),
    ("lemma-12", "convergence", put("lemma_12/repaired", 0.7), FAILS),
    ("lemma-13", "convergence", put("lemma_13/worst", 1.2), FAILS),
    ("exponential", "convergence",
     both(put("exponential/15/holds", True), put("exponential/10/holds", True)), HOLDS),
    ("exponential", "convergence", put("repaired_bound_held_everywhere", False), FAILS),
    ("between-rounds", "variations", put("inside/5/bound_held", False), FAILS),
    ("parameters", "gaussian", put("parameters", 6421), FAILS),
    ("precision", "variations", put("precision/alpha", 1.0), FAILS),
    ("split", "privacy", put("quoted/fitting_delta", 9.2e-3), HOLDS),
    ("settings", "gaussian", put("accuracy/text/fl-server-momentum", near(93.2)), HOLDS),
    ("settings", "gaussian", put("accuracy/text/fl", near(93.2, 9.0)), INCONCLUSIVE),
    ("gaussian-profile", "gaussian", put_all("difference/correct", near(0.9)), HOLDS),
    ("gaussian-profile", "gaussian", put_all("difference/correct", near(-0.9)), PROGRAM),
    ("gaussian-profile", "gaussian",
     both(put_all("difference/correct", near(-0.9)), put_all("difference/published", near(-0.9))), FAILS),
    ("laplace-profile", "laplace", put_all("difference/correct", near(0.9)), HOLDS),
    ("fluctuations", "variations", put("change/falling", near(0.4)), FAILS),
    ("fluctuations", "variations", put("change/falling", near(-0.1)), INCONCLUSIVE),
    ("fluctuations", "variations", put("fluctuation/both", near(1.0)), INCONCLUSIVE),
    ("fluctuations", "variations", put("fluctuation/both", near(1.7)), FAILS),
    ("fluctuations", "variations", put("fluctuation/base", near(2.0, 2.1)), INCONCLUSIVE),
    ("gaussian-table", "gaussian", put_rows("accuracy/correct", near(93.7)), HOLDS),
    ("gaussian-table", "gaussian", put_rows("accuracy/correct", near(93.7, 5.0)), INCONCLUSIVE),
    ("gaussian-table", "gaussian", put("accuracy/published/cepam-gaussian-2", near(90.0)), FAILS),
    ("laplace-table", "laplace", put_rows("accuracy/correct", near(93.7)), HOLDS),
    ("gaussian-snr", "gaussian", put_rows("program_snr_db/correct", middle(8.0)), HOLDS),
    ("gaussian-snr", "gaussian", put_rows("program_snr_db/correct", middle(12.0, 9.0)), INCONCLUSIVE),
    ("gaussian-snr", "gaussian", put("program_snr_db/published/fl+gaussian", middle(22.2)), FAILS),
    ("laplace-snr", "laplace", put_rows("program_snr_db/correct", middle(8.0)), HOLDS),
    ("gaussian-improvement", "gaussian", put_all("difference/correct", near(0.7)), HOLDS),
    ("gaussian-improvement", "gaussian", put_all("difference/correct", near(2.0)), REPAIRED),
    ("gaussian-improvement", "gaussian", put_all("difference/correct", WIDE), INCONCLUSIVE),
    ("gaussian-improvement", "gaussian", put_all("difference/published", near(0.05)), FAILS),
    ("laplace-improvement", "laplace", put_all("difference/correct", near(0.9)), HOLDS),
    ("laplace-improvement", "laplace", put_all("difference/correct", WIDE), INCONCLUSIVE),
    ("dimensions", "gaussian", put("difference/correct/cepam-gaussian-1/cepam-gaussian-3", near(0.9)), FAILS),
    ("dimensions", "gaussian", put("difference/correct/cepam-gaussian-1/cepam-gaussian-3", WIDE), INCONCLUSIVE),
    ("variance", "exactness", put("ours/gaussian-2/passed", False), FAILS),
    ("vector-rate", "rate", put("own_by_sigma/0.05/3", 4.6), FAILS),
    ("vector-rate", "rate", both(put("own_by_sigma/0.05/2", 4.4), put_all("adaptive_by_sigma", 0.1),
                                 put("adaptive_by_sigma/0.01/1", 0.2), put("adaptive_by_sigma/0.05/1", 0.2)), HOLDS),
    ("finite", "rate", put("own_by_sigma/0.05/3", 1e308), FAILS),
    ("universal", "exactness", put("ours/gaussian-E8/passed", False), FAILS),
    ("no-contribution", "privacy", put("quantized_noise/coarse", 0.1268), HOLDS),
    ("no-contribution", "privacy", put("quantized_noise/fine", 0.1), FAILS),
    ("mini-batching", "convergence", put("minibatch/cases/16/gap_low", 2e-4), FAILS),
    ("mini-batching", "convergence", put("minibatch/cases/16/gap_high", 9e-5), INCONCLUSIVE),
    ("mini-batching", "convergence", put("minibatch/held_everywhere", False), FAILS),
    ("confirmed", "convergence", put("repaired_bound_held_everywhere", False), FAILS),
    ("quoted-round", "privacy", put("quoted/delta_one_round", 0.01), FAILS),
    ("quoted-run", "privacy", put("quoted/epsilon_run_quoted_delta", 1.4), HOLDS),
    ("quoted-run", "privacy", put("quoted/sigma_needed", 1e400), FAILS),
    ("quoted-laplace", "privacy", put("theorem_8/true_epsilon", 2900.0), HOLDS),
    ("relaxed-laplace", "privacy", put("relaxed/epsilon", 40.0), FAILS),
    ("sigmas", "grid", put("gaussian/error_right_order", 1e-4), HOLDS),
    ("gaussian-budgets", "grid", put("gaussian/real_epsilon_round/0.5", 0.6), FAILS),
    ("laplace-budgets", "grid", put_rows("laplace/real_epsilon_round", 400.0), HOLDS),
    ("gaussian-grid", "grid", put("gaussian/difference", near(0.5)), HOLDS),
    ("gaussian-grid", "grid", put("gaussian/difference", WIDE), INCONCLUSIVE),
    ("gaussian-grid", "grid", put("gaussian/difference_published", near(0.0)), FAILS),
    ("laplace-grid", "grid", put("laplace/difference", near(0.5)), HOLDS),
    ("rising", "grid", put("gaussian/rise", near(-0.9)), PROGRAM),
    ("rising", "grid", put("gaussian/rise", WIDE), INCONCLUSIVE),
    ("rising", "grid", both(put("gaussian/rise", near(-0.9)), put("gaussian/rise_published", near(-0.9))), FAILS),
    ("gaussian-knee", "grid", put("gaussian/real_epsilon/2.5", 2.4), HOLDS),
    ("gaussian-knee", "grid", put("gaussian/rise_before", WIDE), INCONCLUSIVE),
    ("gaussian-knee", "grid", put("gaussian/rise_after", near(4.0)), PROGRAM),
    ("laplace-knee", "grid", put("laplace/real_epsilon/1500", 1400.0), HOLDS),
    ("laplace-knee", "grid", put("laplace/rise_before", WIDE), INCONCLUSIVE),
    ("scales", "grid", put("laplace/error_printed", 1e-4), HOLDS),
    ("scales", "grid", put("laplace/error_fitting", 0.1), FAILS),
    ("drop", "grid", put("laplace/drop", near(0.5)), HOLDS),
    ("drop", "grid", put("laplace/drop", near(-0.5)), PROGRAM),
    ("drop", "grid", both(put("laplace/drop", near(-0.5)), put("laplace/drop_published", near(-0.5))), FAILS),
]  # fmt: skip
BEFORE = {
    **dict.fromkeys(
        ("joint", "theorem-7", "theorem-8", "cost", "weight-distance", "psi", "convergence", "unbiased",
         "lemma-12", "exponential", "between-rounds", "split", "quoted-run", "gaussian-knee", "laplace-knee",
         "scales", "vector-rate", "no-contribution"), REPAIRED),
    **dict.fromkeys(("settings", "quoted-laplace", "sigmas", "laplace-budgets"), FAILS),
    **dict.fromkeys(
        ("gaussian-table", "laplace-table", "gaussian-snr", "laplace-snr",
         "gaussian-improvement", "laplace-improvement", "both-improve", "gaussian-grid",
         "laplace-grid"), PROGRAM),
    **dict.fromkeys(
        ("pipeline", "distortion", "drop", "gaussian-profile", "laplace-profile", "confirmed"), INCONCLUSIVE),
}  # fmt: skip
"""The label of every claim on the made-up numbers; those not named hold."""


def test_the_made_up_findings_are_judged_as_they_should_be() -> None:
    found = {one.claim.name: one.label for one in claims.verdicts(whole())}
    assert found == {name: BEFORE.get(name, HOLDS) for name in found}


@pytest.mark.parametrize(
    ("name", "of", "change", "after"), FLIPS, ids=[f"{f[0]}-{f[3].name}-{i}" for i, f in enumerate(FLIPS)]
)
def test_a_verdict_follows_the_numbers(name: str, of: str, change: Change, after: Label) -> None:
    assert verdict(name, whole()).label is BEFORE.get(name, HOLDS) is not after
    assert verdict(name, whole(change, of)).label is after


PROGRAM_FLIPS = [
    ("shared-randomness", "exactness", pass_all("published"), FAILS, HOLDS),
    ("noisy-estimate", "exactness", pass_all("published"), FAILS, HOLDS),
    ("universal", "exactness", pass_all("published"), FAILS, HOLDS),
    ("confirmed", "exactness", pass_all("published"), FAILS, HOLDS),
    ("variance", "exactness", pass_all("published"), FAILS, HOLDS),
    ("clip", "gaussian", put("sent_norm/published/cepam-gaussian-1", 1.0), FAILS, HOLDS),
    ("gaussian-table", "gaussian", put_rows("accuracy/published", near(93.4, 5.0)), HOLDS, INCONCLUSIVE),
    ("gaussian-snr", "gaussian", put("program_snr_db/published/fl+sdq", middle(20.0)), HOLDS, FAILS),
    ("laplace-improvement", "laplace", put_all("difference/published", near(2.0)), HOLDS, REPAIRED),
    ("dimensions", "gaussian", put_all("difference/published", near(0.0)), FAILS, HOLDS),
    ("distortion", "gain", put_rows("difference/published", near(-0.9)), HOLDS, FAILS),
    ("rising", "grid", put("gaussian/rise_published", WIDE), HOLDS, INCONCLUSIVE),
    ("gaussian-knee", "grid", put("gaussian/rise_after_published", near(9.0)), HOLDS, FAILS),
    ("drop", "grid", put("laplace/drop_published", near(-0.5)), HOLDS, FAILS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "of", "change", "before", "after"), PROGRAM_FLIPS, ids=[f"{f[0]}" for f in PROGRAM_FLIPS]
)
def test_the_published_program_has_a_column_of_its_own(
    name: str, of: str, change: Change, before: Label, after: Label
) -> None:
    assert verdict(name, whole()).program is before
    assert verdict(name, whole(change, of)).program is after


def test_what_the_program_does_never_downgrades_the_scheme() -> None:
    """All that is measured of the program spoiled: no label of the scheme gets worse, "only the program" aside."""
    before = {one.claim.name: one.label for one in claims.verdicts(whole())}
    parts = whole()
    for one in parts:
        if one.name in ("gaussian", "laplace"):
            put_all("difference/published", near(-9.0))(one.numbers)
            put_rows("accuracy/published", near(10.0))(one.numbers)
            put_rows("program_snr_db/published", near(-50.0))(one.numbers)
            put("sent_norm/published/cepam-gaussian-1", 99.0)(one.numbers)
    for one in claims.verdicts(parts):
        assert one.label is before[one.claim.name] or before[one.claim.name] is PROGRAM


def test_every_claim_that_numbers_decide_has_a_flip() -> None:
    decided = {claim.name for claim in claims.CLAIMS} - PROVED
    assert decided - {flip[0] for flip in FLIPS} == {"both-improve", "distortion"}, "these have tests of their own"
