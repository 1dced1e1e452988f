"""Every public name of `cepam.secure_aggregation` at work: four nodes and their server in one process."""

import hashlib

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import cepam
from cepam import policy, privacy, secure_aggregation


def verify(public: bytes, transcript: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, transcript)
    except InvalidSignature:
        return False
    return True


floors = policy.ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=100, honest=1)
nodes = {}
for name in range(4):
    key = Ed25519PrivateKey.generate()
    account = policy.MemoryAccount()  # in earnest: policy.FileAccount(path), which outlives the process
    nodes[name] = secure_aggregation.SecAggClient(
        name, key.public_key().public_bytes_raw(), key.sign, verify, floors, account
    )

hello = secure_aggregation.HelloRequest(b"my run", 1).encode()
peers = [secure_aggregation.HelloReply.decode(node.hello(hello)).peer for node in nodes.values()]
assert all(isinstance(peer, secure_aggregation.RosterEntry) for peer in peers)
roster = secure_aggregation.Roster.of(b"my run", 1, peers)

law, size = cepam.Gaussian(0.25), 12
rule = secure_aggregation.QuantizationRange(law, clients=4, clip=1.0)  # how large a sum may be: a public rule
codec: secure_aggregation.MaskedSumCodec = secure_aggregation.fit(
    law, clients=4, coordinates=size, quantization_range=rule.value
)
settings = secure_aggregation.SecAggSettings(
    run=b"my run",
    epoch=1,
    position=0,
    coordinates=size,
    bits=codec.bits,
    gain=codec.gain,
    noise=0.25,
    clip=1.0,
    quorum=3,
)
model = hashlib.sha256(b"the model").digest()
round = secure_aggregation.SecAggRound(settings, roster, roster.names, model)
for name, node in nodes.items():
    round.take(name, node.train(round.request(), model, lambda asked: np.zeros(size, np.float32), size))
while asks := round.repairs():  # of those who fell silent; here of nobody
    for name, ask in asks.items():
        round.take_repair(name, nodes[name].repair(ask))
for name, ask in round.unmasks().items():
    round.take_unmask(name, nodes[name].unmask(ask))
total = round.open()  # the noisy sum; nobody saw a part
rule.observe(total)

try:
    nodes[0].train(round.request(), model, lambda asked: np.zeros(size, np.float32), size)
except secure_aggregation.SecAggRefused as refused:  # a round is answered once
    reply = secure_aggregation.RefusalReply(refused.kind).encode()

drawn = privacy.Sampling("poisson", 64)
mechanism = privacy.Mechanism.uniform(
    4, cepam.Gaussian(0.1), cepam.L2(1.0), drawn, records=2000, rounds=10, adjacency="add-remove", clipped="example"
)
found: tuple[secure_aggregation.View, ...] = secure_aggregation.views(clients=4, quorum=3)
seen = secure_aggregation.mechanism_for(found[0], mechanism)
secure_aggregation.epsilons(mechanism, 1e-5, quorum=3)
book = privacy.Accountant((mechanism,))
secure_aggregation.run_epsilons(book, book, 1e-5, found, clients=4)

sketch = secure_aggregation.Sketch(coordinates=100, size=20, seed=bytes(32))
sketch.restore(sketch.apply(np.ones(100, np.float32)))
neighbours, threshold = secure_aggregation.sparse_graph(clients=1000, corrupt=0.1, dropping=0.1)
