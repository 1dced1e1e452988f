"""Every public name of `cepam` at work: codecs, keys, clips, lattices, quantizers, model broadcast."""

import numpy as np

import cepam

update, key = np.linspace(-0.01, 0.01, 64, dtype=np.float32), cepam.Key.generate()
clip: cepam.Clip = cepam.L2(1.0)  # or cepam.L1(1.0)
small, bounded = clip.apply(update), cepam.L1(0.1).apply(update)

at = cepam.Address(key, round=0, client=3)
for law in (cepam.Gaussian(0.01), cepam.Laplace(0.01), cepam.UniformBall(0.02)):
    assert isinstance(law, cepam.Law)
    codec = cepam.Codec(law, "Z1")
    vector = codec.decode(codec.encode(small, at), at)  # an address is used once; here each codec has its own

lattices = (cepam.Integer(1), cepam.A2, cepam.D4, cepam.E8, cepam.Lattice([[2.0, 1.0], [0.0, 1.0]]))
sizes = [len(cepam.Codec(cepam.Gaussian(0.01), each).encode(small, at)) for each in lattices]
plain = cepam.DitheredCodec(0.001)  # compresses without privacy
plain.decode(plain.encode(small, at), at)

sdq = cepam.SDQ(0.01)
sdq.reconstruct(sdq.quantize(small, at), at)
rsuq = cepam.RSUQ(0.01, inside=lambda errors: np.abs(errors).max(axis=1) < 0.004)
rsuq.reconstruct(*rsuq.quantize(small, at), at)
lrsuq = cepam.LRSUQ(cepam.Gaussian(0.01))
lrsuq.reconstruct(*lrsuq.quantize(small, at), at)

codec = cepam.Codec(cepam.Gaussian(0.01), "Z1")
ats = [cepam.Address(key, round=1, client=k) for k in range(3)]
messages = cepam.encode_many(codec, np.stack([small] * 3), ats)
vectors = cepam.decode_many(codec, messages, ats, size=64)

model = {"weight": small.reshape(8, 8), "bias": np.zeros(8, np.float32)}
message = cepam.encode_tree(codec, model, cepam.Address(key, round=2, client=0), clip=clip)
back = cepam.decode_tree(codec, message, cepam.Address(key, round=2, client=0), like=model)
assert cepam.structure_of(back).fingerprint == cepam.structure_of(model).fingerprint

chain, used = cepam.KeyChain(key), cepam.UsedAddresses()
codec.encode(small, chain.address(client=0), used)
try:
    codec.encode(small, chain.address(client=0), used)
except cepam.errors.WrongAddress as refused:
    print(refused)

server, client = cepam.Broadcast(run=b"mine", start=small), cepam.Receiver(run=b"mine", start=small)
client.apply(server.publish(small + 0.1, step=2.0**-8))
assert np.array_equal(client.weights, server.weights)
