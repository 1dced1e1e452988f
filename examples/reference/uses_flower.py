"""Every public name of `cepam.flower` at work: strategies and the client mod."""

from flwr.clientapp import ClientApp
from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import cepam
from cepam.flower import (
    Accounting,
    AdaptiveClip,
    Authentication,
    ClientPolicy,
    Compression,
    CorrelatedNoiseConfig,
    Dropouts,
    Fixed,
    Gradient,
    NodeSettings,
    PldAccountant,
    Poisson,
    Private,
    QuantizedBroadcast,
    SecureAggregation,
    Target,
    Uplink,
)
from cepam.privacy import Sampling

app = ClientApp(mods=[Uplink()])
strategy = Private(FedAvg(), clip=cepam.L2(1.0), epsilon=2.0)

clip, noise = cepam.L2(1.0), cepam.Gaussian(0.2)
planned = Private(FedAvg(), clip=clip, epsilon=Target(2.0, rounds=50, nodes=8))
records = Accounting(delta=1e-6, records=2000, record_sampling=Sampling("poisson", 64), clipped="example", budget=4.0)
clipped = Private(FedAvg(), clip=clip, noise=noise, accounting=records, update=Gradient(learning_rate=0.5))
sampled = Private(FedAvg(), clip=AdaptiveClip(clip, quantile=0.5), noise=noise, sampling=Poisson(sampling_rate=0.01))
assert Fixed(size=1000).of(nodes=100_000).size == Poisson(sampling_rate=0.01).of(nodes=100_000).size

small = Compression("E8", padding=512)
mixed = Private(FedAvg(), clip=clip, noise=noise, compression=small, nodes={7: NodeSettings(cepam.Gaussian(0.4))})
strict = Private(FedAvg(), clip=clip, noise=noise, authentication=Authentication(required=True))
charged = Private(FedAvg(), clip=clip, noise=noise, dropouts=Dropouts("charge", least_replies=3))
broadcast = Private(FedAvg(), clip=clip, noise=noise, downlink=QuantizedBroadcast(step=0.01))
later = CorrelatedNoiseConfig(decay=0.9, slices=20, max_participations=200)  # later rounds cancel noise of earlier ones
stable = Accounting(stable_nodes=True)
correlated = Private(FedAvg(), clip=clip, noise=noise, accounting=stable, correlated_noise=later)

masked = SecureAggregation(FedAvg(), clip=clip, noise=noise, quorum=0.8)
simulated = ClientApp(
    mods=[Uplink(policy=ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=100))]
)  # real nodes have files

relation, drawn = NeighboringRelation("add-or-remove-one"), SamplingMethod("no-amplification")
accountant = PldAccountant(PrivacyConfig(1e-5, 200, relation, drawn, max_epsilon=4.0))  # Flower's own protocol
fixed = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 200, accountant=accountant)  # stops at 4.0
whole = Private(FedAvg(), clip=clip, noise=noise, accounting=Accounting(unit="client"))
assert whole.privacy_spent().num_releases == 0  # Flower's PrivacySpent: whole clients, Gaussian noise
