"""Privacy accounting: what a run guarantees, what noise a target needs, and whether the figure is worth anything.

Record what was released (`Mechanism`, or a `Accountant` of several), then ask:

    import cepam
    from cepam import privacy

    mechanism = privacy.Mechanism.uniform(
        30, cepam.Gaussian(0.25), cepam.L2(1.0), privacy.Sampling("replacement", 15), records=2000, rounds=80
    )
    privacy.epsilon(mechanism, delta=1e-5)  # 2.0517: over all 80 rounds, replace-one
    privacy.calibrate(mechanism, epsilon=1.0, delta=1e-5).clients[0].law  # Gaussian(sigma=0.30367)

Trust model, unless a class says otherwise: the server is trusted and holds the keys. The guarantee is for one
record of one client (or one whole client, `unit`), in what the server publishes, against outsiders and the other
clients. Against the server or any other key holder there is none. docs/accounting.md is the
introduction; docs/proofs has the proofs.

- mechanisms: `Sampling`, `Client`, `Mechanism`; the accountant of a run: `Accountant`, `fingerprint`
- user-level privacy with client sampling: `Cohort`, `CohortMechanism`, `DropoutCompensation`, `server_noise`
- adaptive clipping: `joint_multiplier`, `update_multiplier`, `fraction_within`, `next_clip`
- local DP-SGD, where the server sees noised updates only: `LocalMechanism`, `steps_of`
- the matrix mechanism (DP-FTRL), without secret sampling: `CorrelatedNoise`, `CorrelatedNoiseSender`,
  `CorrelatedNoiseReceiver`, `best_decay`, `weight_noise`, `MatrixMechanism`, `Cyclic`, `Separated`, `slice_of`,
  `sensitivity`, `ObservedParticipation`, `Arrival`
- figures: `epsilon`, `delta`, `spent`, `epsilon_by_round`, `delta_without_noise`, `report`, `Guarantee`
- Laplace noise: `pure_epsilon`, `zcdp_rho`, `epsilon_of_zcdp`
- the inverse: `calibrate`, `calibrate_each`; what its noise means for use: `noise_multiplier`, `noise_ratio`,
  `NoiseRatio`
- what to say with a figure: `privacy_warnings`, `about_epsilon`, `PrivacyWarning`, `Practice`, `LARGE_EPSILON`,
  `NOT_COVERED`
- a plan for a federation: `Federation`, `Plan`, `plan`
- the mechanism's own arithmetic: `slack`, `Slack`
- the audit: `audit`, `Audit`, `AuditedMechanism`, `RoundTrip`
- a page with plots: `explain`; in dp-accounting's words: `to_dp_event`, `supports`
- underneath: `SubsampledMechanism`, `GaussianShift`, `LaplaceShift`
"""

from cepam.clip import Adjacency
from cepam.privacy.auditing.audit import Audit, AuditedMechanism, RoundTrip, audit
from cepam.privacy.cohorts.adaptive_clip import fraction_within, joint_multiplier, next_clip, update_multiplier
from cepam.privacy.cohorts.cohort import Cohort, CohortMechanism
from cepam.privacy.cohorts.dropouts import DropoutCompensation, server_noise
from cepam.privacy.composition.accountant import (
    Accountant,
    delta,
    delta_without_noise,
    epsilon,
    epsilon_by_round,
    slack,
    spent,
)
from cepam.privacy.composition.calibration import calibrate, calibrate_each
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise, CorrelatedNoiseReceiver, CorrelatedNoiseSender
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.matrix.participation import (
    Arrival,
    Cyclic,
    ObservedParticipation,
    Separated,
    best_decay,
    sensitivity,
    slice_of,
    weight_noise,
)
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift
from cepam.privacy.mechanisms.dp_events import supports, to_dp_event
from cepam.privacy.mechanisms.laplace import epsilon_of_zcdp, pure_epsilon, zcdp_rho
from cepam.privacy.mechanisms.local import LocalMechanism, steps_of
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, Sampling, SubsampledMechanism
from cepam.privacy.mechanisms.serialization import fingerprint
from cepam.privacy.numerics.slack import NOT_COVERED, Slack
from cepam.privacy.reports.guarantee import Guarantee, NoiseRatio, noise_multiplier, noise_ratio, report
from cepam.privacy.reports.page import explain
from cepam.privacy.reports.planning import Federation, Plan, plan
from cepam.privacy.reports.warnings import LARGE_EPSILON, Practice, PrivacyWarning, about_epsilon, privacy_warnings

__all__ = [
    "LARGE_EPSILON",
    "NOT_COVERED",
    "Accountant",
    "Adjacency",
    "Arrival",
    "Audit",
    "AuditedMechanism",
    "Client",
    "Cohort",
    "CohortMechanism",
    "CorrelatedNoise",
    "CorrelatedNoiseReceiver",
    "CorrelatedNoiseSender",
    "Cyclic",
    "DropoutCompensation",
    "Federation",
    "GaussianShift",
    "Guarantee",
    "LaplaceShift",
    "LocalMechanism",
    "MatrixMechanism",
    "Mechanism",
    "NoiseRatio",
    "ObservedParticipation",
    "Plan",
    "Practice",
    "PrivacyWarning",
    "RoundTrip",
    "Sampling",
    "Separated",
    "Slack",
    "SubsampledMechanism",
    "about_epsilon",
    "audit",
    "best_decay",
    "calibrate",
    "calibrate_each",
    "delta",
    "delta_without_noise",
    "epsilon",
    "epsilon_by_round",
    "epsilon_of_zcdp",
    "explain",
    "fingerprint",
    "fraction_within",
    "joint_multiplier",
    "next_clip",
    "noise_multiplier",
    "noise_ratio",
    "plan",
    "privacy_warnings",
    "pure_epsilon",
    "report",
    "sensitivity",
    "server_noise",
    "slack",
    "slice_of",
    "spent",
    "steps_of",
    "supports",
    "to_dp_event",
    "update_multiplier",
    "weight_noise",
    "zcdp_rho",
]
