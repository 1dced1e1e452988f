"""What a masked sum costs: CPU of a client and of the server, and bytes, at a million coordinates and thirty clients.

    python bench/secure.py [coordinates] [clients] [dropped]
    python bench/secure.py 10000000 30 --device cuda         # kernels alone, on a GPU beside one thread of the CPU

One thread. Best of five; the client's figure is one whole `train` answer less the training itself. The server's is one
whole round's worth: taking the replies, repairing, taking the shares and opening the sum. On a GPU: seconds by the
clock, copies of messages included, after one call that compiles; and whether words, bytes and sums are the CPU's.
Written to bench/results/secure.json.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cepam.distributions.laws import Gaussian
from cepam.policy import ClientPolicy, MemoryAccount
from cepam.secure_aggregation import HelloReply, HelloRequest, Roster, SecAggClient, SecAggRound, SecAggSettings, fit
from stamp import merge

MODEL = hashlib.sha256(b"model").digest()
REPEATS = 5
REACH = 1.5


def best(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """The least seconds of several runs."""
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def verify(identity: bytes, transcript: bytes, signature: bytes) -> bool:
    """Whether the transcript was signed; raises if not, which ends the bench."""
    key = serialization.load_pem_public_key(identity)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(signature, transcript, ec.ECDSA(hashes.SHA256()))
    return True


def make_node(name: int) -> SecAggClient:
    """A node with a key of its own."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    terms = ClientPolicy(noise_scale=1e-6, clipping_norm=1.0, rounds=10**6)
    return SecAggClient(name, public, lambda t: key.sign(t, ec.ECDSA(hashes.SHA256())), verify, terms, MemoryAccount())


class Spent:
    """Seconds of CPU, by who spent them."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def by(self, whom: str, work: Callable[[], Any]) -> Any:
        """What the work returns; its seconds are noted."""
        start = time.process_time()
        result = work()
        self.times.setdefault(whom, []).append(time.process_time() - start)
        return result


class Bench:
    """One cohort, and the seconds of each of its parts."""

    def __init__(self, coordinates: int, clients: int, dropped: int) -> None:
        self.dropped, self.position = set(range(clients - dropped, clients)), -1
        self.nodes = [make_node(name) for name in range(clients)]
        ask = HelloRequest(b"bench", 1).encode()
        self.roster = Roster.of(b"bench", 1, [HelloReply.decode(node.hello(ask)).peer for node in self.nodes])
        self.update = (np.random.default_rng(0).normal(size=coordinates) / coordinates).astype(np.float32)
        code = fit(Gaussian(0.18), clients, coordinates, REACH)
        self.shape = (coordinates, code.bits, code.gain)
        self.quorum = max(-(-8 * clients // 10), clients // 2 + 1)

    def round(self) -> SecAggRound:
        """The next round, not yet asked for."""
        self.position += 1
        settings = SecAggSettings(b"bench", 1, self.position, *self.shape, 0.18, 1.0, self.quorum)
        return SecAggRound(settings, self.roster, self.roster.names, MODEL)

    def train(self, node: SecAggClient, round_: SecAggRound) -> bytes:
        """A node's answer."""
        return node.train(
            round_.request(with_roster=self.position == 0), MODEL, lambda _: self.update, len(self.update)
        )

    def whole(self) -> dict[str, float]:
        """Seconds of CPU of one round, for one client and for the server, and bytes."""
        round_, spent = self.round(), Spent()
        for node in self.nodes:
            reply = spent.by("client train", lambda node=node: self.train(node, round_))
            if node.node not in self.dropped:
                spent.by("server", lambda node=node, reply=reply: round_.take(node.node, reply))
        for name, ask in spent.by("server", round_.repairs).items():
            said = spent.by("client repair", lambda name=name, ask=ask: self.nodes[name].repair(ask))
            spent.by("server", lambda name=name, said=said: round_.take_repair(name, said))
        for name, ask in spent.by("server", round_.unmasks).items():
            unmasked = spent.by("client unmask", lambda name=name, ask=ask: self.nodes[name].unmask(ask))
            spent.by("server", lambda name=name, said=unmasked: round_.take_unmask(name, said))
        spent.by("server", round_.open)
        return {
            "client train": min(spent.times["client train"]),
            "client unmask": min(spent.times["client unmask"]),
            "server": sum(spent.times["server"]),
            "vector bytes": round_.settings.codec.message_bytes,
            "upload bytes": len(reply) + len(unmasked),
        }

    def parts(self) -> dict[str, float]:
        """Seconds of the kernels by themselves."""
        codec = self.round().settings.codec
        keys = [(bytes([i]) * 32, 1) for i in range(len(self.nodes))]
        y = codec.noised(self.update, bytes(32))
        message = codec.mask(y, keys)
        return {
            "noise": best(lambda: codec.noised(self.update, bytes(32))),
            "masks and packing": best(lambda: codec.mask(y, keys)),
            "unpacking": best(lambda: codec._total([message] * len(keys))),
            "mask sum": best(lambda: codec._mask_sum(keys)),
        }


def on_gpu(coordinates: int, clients: int, device: str) -> None:
    """Prints seconds of the kernels on a GPU beside the CPU's, and whether they agree in every bit."""
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    code = fit(Gaussian(0.18), clients, coordinates, REACH)
    masks = [(bytes([i + 1]) * 32, 1 - 2 * (i % 2)) for i in range(clients)]
    update = (np.random.default_rng(0).normal(size=coordinates) / coordinates).astype(np.float32)
    there = torch.from_numpy(update).to(device)
    y, y_there = code.noised(update, bytes(32)), code.noised(there, bytes(32))
    message, message_there = code.mask(y, masks), code.mask(y_there, masks)
    messages = [message] * clients
    total, total_there = code.open(messages, masks), code.open(messages, masks, device=device)
    alike = np.array_equal(y, y_there.cpu()), message == message_there, np.array_equal(total, total_there.cpu())
    rows: list[dict[str, float | str]] = []
    print(f"{coordinates:,} coordinates, {clients} clients, b = {code.bits}, {torch.cuda.get_device_name(device)}")
    print(f"  the CPU's integers, bytes and sums: {alike}")
    for name, here, on_device in (
        ("client: noise", lambda: code.noised(update, bytes(32)), lambda: code.noised(there, bytes(32))),
        (f"client: {clients} masks, packing", lambda: code.mask(y, masks), lambda: code.mask(y_there, masks)),
        (
            "server: unpacking, masks",
            lambda: code.open(messages, masks),
            lambda: code.open(messages, masks, device=device),
        ),
    ):
        cpu, gpu = best(here, clock), best(on_device, clock)
        rows.append({"what": name, "cpu_seconds": cpu, "gpu_seconds": gpu})
        print(f"  {name}: CPU {cpu:.4f} s, GPU {gpu:.5f} s, {coordinates / gpu / 1e9:.2f} G coordinates/s")
    told = {"coordinates": coordinates, "clients": clients, "bits": code.bits, "identical": all(alike)}
    merge("secure", f"{coordinates} coordinates, {clients} clients, GPU", {**told, "rows": rows})


def on_cpu(coordinates: int, clients: int, dropped: int) -> None:
    """Prints and writes processor seconds of a whole round, and bytes."""
    bench = Bench(coordinates, clients, dropped)
    first = bench.whole()
    rounds = [bench.whole() for _ in range(REPEATS)]
    seconds = {"client, first round of an epoch": first["client train"]}
    seconds |= {name: min(each[name] for each in rounds) for name in ("client train", "client unmask", "server")}
    sizes = {name: int(rounds[0][name]) for name in ("vector bytes", "upload bytes")}
    found = {
        "coordinates": coordinates, "clients": clients, "dropped": dropped, "bits": bench.shape[1],
        "processor_seconds": seconds, **sizes, "bits_per_coordinate": 8 * sizes["upload bytes"] / coordinates,
        "kernel_processor_seconds": bench.parts(),
    }  # fmt: skip
    print(f"{coordinates:,} coordinates, {clients} clients, {dropped} dropped, b = {bench.shape[1]}")
    for name, value in (seconds | found["kernel_processor_seconds"]).items():
        print(f"  {name}: {value:.4f} s")
    for name, value in sizes.items():
        print(f"  {name}: {value:,}")
    print(f"  bits per coordinate up: {found['bits_per_coordinate']:.3f}")
    merge("secure", f"{coordinates} coordinates, {clients} clients, {dropped} dropped", found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("coordinates", type=int, nargs="?", default=10**6)
    parser.add_argument("clients", type=int, nargs="?", default=30)
    parser.add_argument("dropped", type=int, nargs="?", default=0)
    parser.add_argument("--device", help="a GPU such as cuda; without it a whole round on the CPU")
    asked = parser.parse_args()
    if asked.device:
        on_gpu(asked.coordinates, asked.clients, asked.device)
    else:
        on_cpu(asked.coordinates, asked.clients, asked.dropped)
