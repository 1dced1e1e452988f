"""The paper's bounds as functions, as printed and as they can be proved, and small worlds that put them to the test."""

from __future__ import annotations

from cepam_paper.theory.convergence import Constants, Convergence, Schedule, one_round
from cepam_paper.theory.distortion import (
    clipping_bias,
    noise_energy,
    printed_noise_energy,
    printed_weight_distance,
    weight_distance,
)
from cepam_paper.theory.downlink import DownlinkError, downlink_error
from cepam_paper.theory.geman_mcclure import GemanMcClure
from cepam_paper.theory.gradients import ExampleSums, GradientBounds
from cepam_paper.theory.minibatch import BatchConvergence
from cepam_paper.theory.problem import LeastSquares, Logistic, Problem
from cepam_paper.theory.rate import Rate, rate
from cepam_paper.theory.stationarity import Stationarity

__all__ = [
    "BatchConvergence",
    "Constants",
    "Convergence",
    "DownlinkError",
    "ExampleSums",
    "GemanMcClure",
    "GradientBounds",
    "LeastSquares",
    "Logistic",
    "Problem",
    "Rate",
    "Schedule",
    "Stationarity",
    "clipping_bias",
    "downlink_error",
    "noise_energy",
    "one_round",
    "printed_noise_energy",
    "printed_weight_distance",
    "rate",
    "weight_distance",
]
