"""What a run of CEPAM really guarantees, what noise a target needs, and whether the figure is worth anything.

Record what was released (`Release`, or a `Ledger` of several), then ask:

    import cepam
    from cepam import privacy

    release = privacy.Release.uniform(
        30, cepam.Gaussian(0.25), cepam.L2(1.0), privacy.Sampling("replacement", 15), records=2000, rounds=80
    )
    privacy.epsilon(release, delta=1e-5)  # 2.0517: over all 80 rounds, replace-one
    privacy.calibrate(release, epsilon=1.0, delta=1e-5).clients[0].law  # Gaussian(sigma=0.30367)

Trust model, here and everywhere below: the server is trusted and holds the keys. The guarantee is for one
record of one client (or one whole client, `unit`), in what the server publishes, against outsiders and the other
clients. Against the server or any other key holder there is none. `docs/privacy.md` has the page for a practitioner
and the proofs for a sceptic.

- the record: `Sampling`, `Client`, `Release`; the book of a run: `Ledger`, `fingerprint`
- whole clients in cohorts: `Cohort`, `CohortRelease`, `TopUp`, `server_noise`; a clip that follows the norms:
  `joint_multiplier`, `update_multiplier`, `fraction_within`, `next_clip`
- noise inside local steps, so that the server sees noised updates only: `LocalRelease`, `steps_of`
- noise that cancels over rounds, where nothing is drawn in secret: `Correlation`, `StreamSender`, `StreamReceiver`,
  `best_carry`, `weight_noise`, `CorrelatedRelease`, `Cyclic`, `Separated`, `slice_of`, `sensitivity`, `Attendance`,
  `Arrival`
- the account: `epsilon`, `delta`, `spent`, `epsilon_by_round`, `delta_without_noise`, `report`, `Guarantee`
- Laplace noise: `pure_epsilon`, `zcdp_rho`, `epsilon_of_zcdp`
- the inverse: `calibrate`, `calibrate_each`; what its noise means for use: `noise_to_clip`, `NoiseToClip`
- what to say with a figure: `cautions`, `about_epsilon`, `Caution`, `Practice`, `LARGE_EPSILON`, `NOT_COVERED`
- the mechanism's own arithmetic: `slack`, `Slack`
- the audit: `audit`, `Audit`, `Mechanism`, `RoundTrip`
- a page with plots: `explain`; in dp-accounting's words: `to_dp_event`, `supports`
- underneath: `Charge`, `GaussianShift`, `LaplaceShift`
"""

from cepam.clip import Adjacency
from cepam.privacy.account import (
    delta,
    delta_without_noise,
    epsilon,
    epsilon_by_round,
    slack,
    spent,
)
from cepam.privacy.adaptive import fraction_within, joint_multiplier, next_clip, update_multiplier
from cepam.privacy.attendance import Arrival, Attendance
from cepam.privacy.audited import RoundTrip
from cepam.privacy.auditing import Audit, Mechanism, audit
from cepam.privacy.calibration import calibrate, calibrate_each
from cepam.privacy.cautions import LARGE_EPSILON, Caution, Practice, about_epsilon, cautions
from cepam.privacy.cohort import Cohort, CohortRelease
from cepam.privacy.correlated import CorrelatedRelease
from cepam.privacy.correlation import Correlation, StreamReceiver, StreamSender
from cepam.privacy.dominating import GaussianShift, LaplaceShift
from cepam.privacy.events import supports, to_dp_event
from cepam.privacy.guarantee import Guarantee, report
from cepam.privacy.laplace import epsilon_of_zcdp, pure_epsilon, zcdp_rho
from cepam.privacy.ledger import Ledger
from cepam.privacy.local import LocalRelease, steps_of
from cepam.privacy.noise_to_clip import NoiseToClip, noise_to_clip
from cepam.privacy.numerics import NOT_COVERED, Slack
from cepam.privacy.page import explain
from cepam.privacy.participation import Cyclic, Separated, sensitivity, slice_of
from cepam.privacy.record import fingerprint
from cepam.privacy.release import Client, Release
from cepam.privacy.sampled import Charge, Sampling
from cepam.privacy.topup import TopUp, server_noise
from cepam.privacy.workload import best_carry, weight_noise

__all__ = [
    "LARGE_EPSILON",
    "NOT_COVERED",
    "Adjacency",
    "Arrival",
    "Attendance",
    "Audit",
    "Caution",
    "Charge",
    "Client",
    "Cohort",
    "CohortRelease",
    "CorrelatedRelease",
    "Correlation",
    "Cyclic",
    "GaussianShift",
    "Guarantee",
    "LaplaceShift",
    "Ledger",
    "LocalRelease",
    "Mechanism",
    "NoiseToClip",
    "Practice",
    "Release",
    "RoundTrip",
    "Sampling",
    "Separated",
    "Slack",
    "StreamReceiver",
    "StreamSender",
    "TopUp",
    "about_epsilon",
    "audit",
    "best_carry",
    "calibrate",
    "calibrate_each",
    "cautions",
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
    "noise_to_clip",
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
