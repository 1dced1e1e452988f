"""Every public name of `cepam.privacy` at work: the accountant."""

import math

import numpy as np

import cepam
from cepam import privacy

drawn = privacy.Sampling("replacement", 15)
mechanism = privacy.Mechanism.uniform(
    4, cepam.Gaussian(0.5), cepam.L2(1.0), drawn, records=2000, rounds=20, coordinates=1000
)
spent = privacy.epsilon(mechanism, delta=1e-5)
assert privacy.delta(mechanism, spent) <= 1e-5
assert privacy.spent(mechanism, 1e-5) <= 1.001 * spent
privacy.epsilon_by_round(mechanism, 1e-5, rounds=[1, 10, 20])
privacy.delta_without_noise(mechanism)
rounding: privacy.Slack = privacy.slack(mechanism)
each: tuple[privacy.Guarantee, ...] = privacy.report(mechanism, 1e-5)

adjacency: privacy.Adjacency = "add-remove"
own = privacy.Client(cepam.Gaussian(0.5), records=500, weight=0.5)
two = privacy.Mechanism((own, own), cepam.L2(1.0), drawn, adjacency=adjacency)
enough = privacy.calibrate(two, epsilon=1.0, delta=1e-5)
apart = privacy.calibrate_each(two, epsilons=[1.0, 3.0], deltas=[1e-5, 1e-5])
found: privacy.NoiseRatio = privacy.noise_ratio(enough)
print(found.noise, found.advice)  # of the average, in clipping norms; and what that means
assert privacy.noise_multiplier(enough) > 0  # of the sum, in clipping norms

sites = privacy.Federation(coordinates=1000, epsilon=2.0, records=(500, 4000), rounds=20)
recommended: privacy.Plan = privacy.plan(sites)
print(recommended.mode, recommended.expectation)

practice = privacy.Practice(rounds=80)  # the figure is for 20 of them
warned: tuple[privacy.PrivacyWarning, ...] = privacy.privacy_warnings(mechanism, spent, 1e-5, practice)
assert warned[0].code == "not-the-whole-run"
assert privacy.about_epsilon(2 * privacy.LARGE_EPSILON)[0].code == "large-epsilon"
print(privacy.NOT_COVERED[0])

accountant = privacy.Accountant(configuration=privacy.fingerprint("my settings"))
accountant = accountant.add(mechanism.over(1).without([3]))
poisson = privacy.Mechanism(
    (own,), cepam.L2(1.0), privacy.Sampling("poisson", 15), adjacency="add-remove", clipped="example"
)
if privacy.supports(poisson):
    event = privacy.to_dp_event(poisson)

charge: privacy.SubsampledMechanism = mechanism.charge(0)
assert isinstance(charge.shift, privacy.GaussianShift)
laplace = privacy.Mechanism.uniform(2, cepam.Laplace(5.0), cepam.L1(1.0), privacy.Sampling("all"), records=100)
assert isinstance(laplace.charge(0).shift, privacy.LaplaceShift)
privacy.pure_epsilon(laplace, 0)
privacy.epsilon_of_zcdp(privacy.zcdp_rho(laplace, 0), 1e-5)

one = privacy.Mechanism.uniform(1, cepam.Gaussian(1.0), cepam.L2(0.5), privacy.Sampling("all"), records=1)
attacked: privacy.AuditedMechanism = privacy.RoundTrip.of_mechanism(one)
found: privacy.Audit = privacy.audit(attacked, one, delta=1e-2, trials=10_000, confidence=1 - 1e-9)
assert not found.refuted
privacy.explain(mechanism, 1e-5, "privacy.html")

sites = privacy.LocalMechanism.of([500, 4000], cepam.L2(1.0), noise_multiplier=4.0, batch=64, epochs=5, rounds=10)
assert sites.steps[1] == privacy.steps_of(4000, 64, 5)

cohort = privacy.Cohort(population=100_000, size=1000)
users = privacy.CohortMechanism.of(cohort, cepam.L2(1.0), noise_multiplier=1.0, rounds=10, adjacency="add-remove")
compensation = privacy.DropoutCompensation(total=1.0, cap=1283)
published = (np.zeros(8) + privacy.server_noise(compensation.missing(replies=871), 8)) / 1000

joint = privacy.joint_multiplier(update=1.0, bit=10.0)
assert math.isclose(privacy.update_multiplier(joint, bit=10.0), 1.0)
within = privacy.fraction_within(480.0, expected=1000)  # the noisy sum of bits
clip = privacy.next_clip(1.0, within)

decay = privacy.best_decay(rounds=12, slices=3)
link = privacy.CorrelatedNoise(decay, 3)
privacy.weight_noise(link, 12)
assert 0 <= privacy.slice_of("patient-17", link.slices) < 3  # which slice a record is in, by its own identifier
privacy.sensitivity(link, 12, privacy.Cyclic(3))
privacy.sensitivity(link, 12, privacy.Separated(apart=3, times=4))
stream = privacy.MatrixMechanism((privacy.Client(cepam.Gaussian(3.0), 9),), cepam.L2(1.0), link=link, rounds=12)
came = privacy.ObservedParticipation.observed(np.ones((1, 12)))
assert isinstance(came.arrivals[0][0], privacy.Arrival)

sender, receiver = privacy.CorrelatedNoiseSender(link, 4), privacy.CorrelatedNoiseReceiver(link, 4)
for position in range(3):
    content = sender.next(np.ones(4))  # what the codec encodes
    received = receiver.take(content, position)
assert np.allclose(received, 1.0)
