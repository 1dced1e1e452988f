"""The masked sum: each client's noisy update as b bits per coordinate, their sum, and epsilon for each observer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from cepam.distributions.laws import Gaussian
from cepam.errors import MalformedMessage
from cepam.kernels.dispatch import as_held, gpu_masks, gpu_masks_of
from cepam.kernels.format.plan import GRID_BITS, Floats, Ints, Plan, key_words, layered_plan
from cepam.kernels.numba.compiling import layer_plan
from cepam.kernels.numba.keystream import LANE_WORDS
from cepam.kernels.numba.masks import add_masks, add_packed, pack_top_bits, round_to_grid, scale_to_words
from cepam.kernels.numba.quantizer import quantize_scalar, to_units, widths_and_dithers
from cepam.kernels.numpy import masks as reference_masks
from cepam.lattices.lattice import Integer
from cepam.privacy import Accountant, Mechanism, epsilon
from cepam.privacy.composition.losses import FINE, ROUGH

LIES = "lying server"


@dataclass(frozen=True)
class View:
    """An observer, and how much noise hides a client from it.

    Args:
        observer: Who looks.
        shares: Clients' noises at least that are in every sum it learns and that it does not know.
    """

    observer: str
    shares: int


def views(clients: int, quorum: int, colluders: int = 0, survivors: int | None = None) -> tuple[View, ...]:
    """Each observer's view of rounds in which `survivors` (all, if not given) of `clients` were in the sum.

    A server that lies about dropouts opens sums of 2 quorum - clients - colluders honest clients at the worst.

    Args:
        clients: Clients of a round.
        quorum: Fewest clients of a sum.
        colluders: Clients that share what they know.
        survivors: Clients in the sum; all by default.

    Returns:
        A view per observer.

    Raises:
        ValueError: The numbers are out of range.
    """
    present = clients if survivors is None else survivors
    if colluders < 0 or not clients + colluders < 2 * quorum <= 2 * present <= 2 * clients:
        raise ValueError(
            f"clients, quorum, colluders, survivors must satisfy K + c < 2t and t <= survivors <= K;"
            f" got {clients}, {quorum}, {colluders}, {present}"
        )
    found = [View("outsider", present), View("server", present)]
    if colluders:
        found.append(View(f"server with {colluders} colluders", present - colluders))
    found.append(View(LIES, 2 * quorum - clients))
    if colluders:
        found.append(View(f"{LIES} with {colluders} colluders", 2 * quorum - clients - colluders))
    return tuple(found)


def mechanism_for(view: View, mechanism: Mechanism) -> Mechanism:
    """The release as this observer sees it: a client hidden by `shares` of the noise, its own among them.

    Args:
        view: From `views`.
        mechanism: The release.

    Returns:
        The mechanism to account for.

    Raises:
        ValueError: Clients are unlike, or the view has more shares than there are clients.
    """
    if len({(client.law, client.weight) for client in mechanism.clients}) > 1:
        raise ValueError("a sum has clients of one law and one weight")
    if not 1 <= view.shares <= len(mechanism.clients):
        raise ValueError(f"shares must be from 1 to the {len(mechanism.clients)} clients, got {view.shares}")
    return replace(mechanism, colluders=0, absent=frozenset(range(view.shares, len(mechanism.clients))))


def epsilons(
    mechanism: Mechanism, delta: float, quorum: int, colluders: int = 0, survivors: int | None = None
) -> dict[str, float]:
    """Return epsilon at delta for each observer of secure aggregation, by name.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds. Its own colluders are not used.
        delta: of the guarantee.
        quorum: the fewest clients in a sum.
        colluders: how many clients help the server.
        survivors: how many clients are in each sum; None: all.

    Returns:
        epsilon by observer.

    Where clients hold unlike records, the worst client's: any of them may be among those whose shares are left.
    """
    many = len(mechanism.clients)
    found = views(many, quorum, colluders, survivors)
    if len(set(mechanism.clients)) == 1:
        return {view.observer: epsilon(mechanism_for(view, mechanism), delta, client=0) for view in found}
    for view in found:
        mechanism_for(view, mechanism)  # refuses unequal noise
    return {view.observer: epsilon(replace(mechanism, colluders=many - view.shares), delta) for view in found}


def run_epsilons(
    released: Accountant, answered: Accountant, delta: float, found: tuple[View, ...], clients: int, rough: bool = False
) -> dict[str, float]:
    """epsilon at delta for each view of a run whose rounds may differ, a bound for all its clients.

    `released` holds the rounds whose shares were asked for, with the survivors present; `answered` every round that
    `clients` were asked in, those present: a server that lies may have opened those that it called lost. `found` are
    `views(clients, …)` with all surviving: what a view has fewer than that is taken away from either. `rough` gives
    a bound in less time.

    Args:
        released: Rounds whose sums were opened or may be.
        answered: Rounds that clients answered.
        delta: At this delta.
        found: From `views`, with all surviving.
        clients: Clients of a round.
        rough: Give a bound in less time.

    Returns:
        epsilon by observer.
    """
    made = {}
    for view in found:
        accountant = answered if view.observer.startswith(LIES) else released
        made[view.observer] = accountant.against(clients - view.shares).epsilon(delta, cells=ROUGH if rough else FINE)
    return made


SECURITY = 2.0**-40
LOSS = 2.0**-24


def sparse_graph(clients: int, corrupt: float, dropping: float) -> tuple[int, int]:
    """Find the least degree of a sparse graph of masks, and its threshold.

    Args:
        clients: how many clients are in a round.
        corrupt: the largest share of them that colludes.
        dropping: the largest share of them that drops out.

    Returns:
        The degree and the threshold.

    With probability under 2^-40 a node has as many colluding neighbours as the threshold, or the honest survivors fall
    apart; with probability under 2^-24 a self-mask cannot be opened and the round is lost. Paper: Bell et al. 2020,
    Section 3: a random order, so that neighbours are drawn without replacement. Covers a server that tells the truth.

    Raises:
        ValueError: A value is out of range, or no sparse graph is safe enough.
    """
    if type(clients) is not int or clients < 4:
        raise ValueError(f"clients must be an integer of at least 4, got {clients!r}")
    if not (min(corrupt, dropping) >= 0.0 and corrupt + dropping < 0.5):
        raise ValueError(f"corrupt and dropping must be shares with a sum below 1/2, got {corrupt!r} and {dropping!r}")
    bad, gone = math.ceil(corrupt * clients), math.ceil(dropping * clients)
    for degree in range(2, clients - 1, 2):
        for threshold in range(degree // 2 + 1, degree + 2):
            security, loss = failure_chances(clients, degree, threshold, bad, gone)
            if security <= SECURITY and loss <= LOSS:
                return degree, threshold
    raise ValueError(f"no sparse graph on {clients} clients is safe enough: use the complete one")


def failure_chances(clients: int, degree: int, threshold: int, corrupt: int, dropping: int) -> tuple[float, float]:
    """Bounds on the probability that secrets of a round are not safe, and that the round is lost, over all clients."""
    seen = _at_least(threshold, clients - 1, corrupt, degree)
    # On a ring where everybody knows degree / 2 on either side, only that many missing in a row can cut it.
    away, row = corrupt + dropping, degree // 2
    cut = math.prod((away - i) / (clients - i) for i in range(row)) if away >= row else 0.0
    lost = _at_least(degree + 2 - threshold, clients - 1, dropping, degree)
    return clients * (seen + cut), clients * lost


def _at_least(least: int, population: int, marked: int, drawn: int) -> float:
    """The probability of `least` marked ones or more among `drawn` of a population, without replacement."""
    first, last = max(least, drawn - (population - marked), 0), min(marked, drawn)
    return sum(
        math.exp(_log_choose(marked, k) + _log_choose(population - marked, drawn - k) - _log_choose(population, drawn))
        for k in range(first, last + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


# y = update + exact Gaussian noise, as integers of the public grid. A client sends the top b bits of g y + S modulo
# 2^32, S its mask. The server adds the messages, takes away the sum of the masks, and divides by g. The mask is the
# dither: what the dropped bits cost is rounding noise whose law does not depend on the updates
# (docs/proofs/secure-aggregation.md, Theorem 1).


Masks = Sequence[tuple[bytes, int]]
Words = npt.NDArray[np.uint32]

WORD_BITS = 32
MOST_COORDINATES = 2**31
_HALF = 1 << (GRID_BITS - 1)
_CHUNK = 1 << 13


@dataclass(frozen=True)
class MaskedSumCodec:
    """Noise, masks and bits of a sum: what its clients and its server agree on.

    Args:
        law: The noise of each client.
        coordinates: Length of an update.
        bits: Bits per coordinate of a message, at most 32; more lose less.
        gain: 32-bit units per grid step: a larger one is finer and wraps at smaller sums.
        backend: What computes on the CPU; both give the same bytes.

    Raises:
        ValueError: A value is out of range, or the noise is not Gaussian.

    Guarantee: what the messages of a round tell is a randomized function of the sum of all noisy updates alone
    (docs/proofs/secure-aggregation.md, Theorem 1; tests/secure_aggregation/test_view.py enumerates small cases).
    NumPy, Numba and a GPU give the same bytes (tests/secure_aggregation/test_mechanism.py,
    tests/identity/test_triton_masks.py). Tensors on a GPU are noised and masked there.
    """

    law: Gaussian
    coordinates: int
    bits: int
    gain: int
    backend: Literal["numba", "numpy"] = field(default="numba", compare=False)

    def __post_init__(self) -> None:
        if type(self.law) is not Gaussian:
            raise ValueError(f"law must be cepam.Gaussian: sums of other noise are not accounted for; got {self.law!r}")
        for name, most in (("coordinates", MOST_COORDINATES), ("bits", WORD_BITS), ("gain", 2**WORD_BITS - 1)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} must be an integer from 1 to {most}, got {value!r}")
        if self.backend not in ("numba", "numpy"):
            raise ValueError(f"backend must be 'numba' or 'numpy', got {self.backend!r}")

    @cached_property
    def plan(self) -> Plan:
        """The numbers of the noise: the layered quantizer in one dimension."""
        return layered_plan(self.law, Integer(1))

    @property
    def grid(self) -> float:
        """u, the public grid: a noisy update is a multiple of it."""
        return self.plan.grid

    @property
    def cell(self) -> float:
        """w, how wide the rounding of one client is: the dropped bits in units of the update."""
        return 2.0 ** (WORD_BITS - self.bits) / self.gain * self.grid

    @property
    def span(self) -> float:
        """The sums that come through unwrapped are those within half of this on either side of zero."""
        return 2.0**WORD_BITS / self.gain * self.grid

    @property
    def message_bytes(self) -> int:
        """The length of every client's vector, whatever it holds."""
        return -(-self.coordinates * self.bits // 8)

    def noised(self, update: Any, key: bytes) -> Any:
        """The update plus noise of the law, as 64-bit multiples of the public grid, on a GPU where the update is there.

        `key` is 32 fresh secret bytes, used for this and thrown away. Guarantee: times `grid`, bit for bit what
        `Codec(law, Integer(1))` decodes from the same keystream (tests/secure_aggregation/test_mechanism.py).

        Args:
            update: The clipped update, an array or a tensor of floats.
            key: The key of the noise, used once.

        Returns:
            64-bit multiples of the public grid.

        Raises:
            ValueError: The update has another length, or values that are not finite or too large.
        """
        values = as_held(update)
        if type_name(values) not in ("float32", "float64") or tuple(values.shape) != (self.coordinates,):
            raise ValueError(
                f"the update must hold {self.coordinates} float32 or float64 values, got {values.dtype} {values.shape}"
            )
        if not bool((abs(values) <= self.plan.reach).all()):
            raise ValueError(
                f"the update must be finite and within {self.plan.reach:.3g}, the quantization range of this noise"
            )
        if len(key) != 32:
            raise ValueError(f"a key must be 32 bytes, got {len(key)}")
        if (gpu := gpu_masks_of(values)) is not None:
            return gpu.noised(self.plan, values, key)
        if self.backend == "numpy":
            units = np.trunc(values.astype(np.float64) / self.plan.unit).astype(np.int64)
            return reference_masks.grid_multiples(self.plan, key, units)
        return _noised(self.plan, key, values)

    def mask(self, multiples: Any, masks: Masks) -> bytes:
        """A client's vector: the top bits of g y + S, packed. `masks` are ChaCha20 keys with their signs.

        Args:
            multiples: What `noised` gave.
            masks: Pairs of a ChaCha20 key and its sign.

        Returns:
            The message.

        Raises:
            ValueError: The multiples have another length or type.
        """
        if type_name(multiples) != "int64" or tuple(multiples.shape) != (self.coordinates,):
            raise ValueError(f"multiples must be {self.coordinates} int64, got {multiples.dtype} {multiples.shape}")
        if (gpu := gpu_masks_of(multiples)) is not None:
            found: bytes = gpu.packed(multiples, self.gain, self.bits, *_keys(masks))
            return found[: self.message_bytes]
        if self.backend == "numpy":
            words = (multiples * self.gain).astype(np.uint64).astype(np.uint32)
            words += reference_masks.mask_sum(masks, self.coordinates)
            return reference_masks.pack(words >> np.uint32(WORD_BITS - self.bits), self.bits)
        keys, signs = _keys(masks)
        out = np.zeros(-(-self.coordinates * self.bits // WORD_BITS), dtype=np.uint32)
        state, spare, words = _scratch()
        for start in range(0, self.coordinates, _CHUNK):
            count = min(_CHUNK, self.coordinates - start)
            scale_to_words(multiples[start : start + count], self.gain, words)
            add_masks(keys, signs, start, state, spare, words[: -(-count // LANE_WORDS) * LANE_WORDS])
            pack_top_bits(words, count, self.bits, out[start * self.bits // WORD_BITS :])
        return out.astype("<u4", copy=False).tobytes()[: self.message_bytes]

    def check_message(self, message: bytes) -> None:
        """Raise `MalformedMessage` for bytes that no client of this sum sends.

        Args:
            message: What came.

        Raises:
            MalformedMessage: Another length, or spare bits that are not zero.
        """
        if len(message) != self.message_bytes:
            raise MalformedMessage(f"a masked vector has {self.message_bytes} bytes here, got {len(message)}")
        spare = 8 * self.message_bytes - self.coordinates * self.bits
        if spare and message[-1] >> (8 - spare):
            raise MalformedMessage("the spare bits of a masked vector must be zero")

    def open(self, messages: Sequence[bytes], masks: Masks, *, device: str | None = None) -> Any:
        """The sum of the clients' noisy updates, rounded; `masks` add up to what the messages' own masks leave.

        With `device="cuda"` it is computed on that GPU, and a float64 tensor there; else an array.
        Sums outside `span` wrap around. That never touches privacy: it is a function of what was sent.

        Args:
            messages: One per survivor.
            masks: Pairs of a ChaCha20 key and its sign.
            device: `"cuda"` computes there.

        Returns:
            A float64 array or tensor.
        """
        for message in messages:
            self.check_message(message)
        # What the dropped bits hold on average, as whole units and a half.
        dropped = len(messages) * (2 ** (WORD_BITS - self.bits) - 1)
        if device is not None:
            away = [(key, -sign) for key, sign in masks]
            held = gpu_masks().unmasked(messages, self.coordinates, self.bits, *_keys(away), device)
            held += (dropped // 2 + 2 ** (WORD_BITS - 1)) % 2**WORD_BITS - 2 ** (WORD_BITS - 1)
            return (held.double() + 0.5 * (dropped % 2)) * (self.grid / self.gain)
        words = self._total(messages) << np.uint32(WORD_BITS - self.bits)
        words -= self._mask_sum(masks)
        words += np.uint32((dropped // 2) % 2**WORD_BITS)
        signed = words.view(np.int32).astype(np.float64)
        total: Floats = (signed + 0.5 * (dropped % 2)) * (self.grid / self.gain)
        return total

    def _total(self, messages: Sequence[bytes]) -> Words:
        total = np.zeros(self.coordinates, dtype=np.uint32)
        for message in messages:
            if self.backend == "numpy":
                total += reference_masks.unpack(message, self.bits, self.coordinates)
            else:
                padded = message + bytes(8 - len(message) % 4)
                add_packed(np.frombuffer(padded, dtype="<u4"), self.bits, total)
        return total

    def _mask_sum(self, masks: Masks) -> Words:
        if self.backend == "numpy":
            return reference_masks.mask_sum(masks, self.coordinates)
        total = np.zeros(-(-self.coordinates // LANE_WORDS) * LANE_WORDS, dtype=np.uint32)
        keys, signs = _keys(masks)
        state, spare, _ = _scratch()
        for start in range(0, len(total), _CHUNK):
            add_masks(keys, signs, start, state, spare, total[start : start + _CHUNK])
        return total[: self.coordinates]


def type_name(values: Any) -> str:
    """The name of the values' type, of arrays and tensors alike."""
    return str(values.dtype).removeprefix("torch.")


def _scratch() -> tuple[Words, Words, Words]:
    state, spare = np.empty(LANE_WORDS, dtype=np.uint32), np.empty(LANE_WORDS, dtype=np.uint32)
    return state, spare, np.zeros(_CHUNK, dtype=np.uint32)


def _keys(masks: Masks) -> tuple[Words, Words]:
    for key, sign in masks:
        if len(key) != 32 or sign not in (1, -1):
            raise ValueError(f"a mask is a key of 32 bytes and a sign of 1 or -1, got {len(key)} bytes and {sign!r}")
    keys = np.array([key_words(key) for key, _ in masks], dtype=np.uint32).reshape(len(masks), 8)
    return keys, np.array([sign % 2**WORD_BITS for _, sign in masks], dtype=np.uint32)


def _noised(plan: Plan, key: bytes, values: npt.NDArray[Any]) -> Ints:
    layers = layer_plan(plan)
    words, secret = np.empty(2 * _CHUNK, dtype=np.uint32), key_words(key)
    state = np.empty(LANE_WORDS, dtype=np.uint32)
    x, b, d, m = (np.empty(_CHUNK, dtype=np.int64) for _ in range(4))
    out = np.empty(len(values), dtype=np.int64)
    for start in range(0, len(values), _CHUNK):
        count = min(_CHUNK, len(values) - start)
        to_units(values[start : start + count], 1.0 / plan.unit, x[:count])
        widths_and_dithers(layers, secret, state, start, count, words, b, d)
        quantize_scalar(x[:count], b[:count], d[:count], m[:count])
        round_to_grid(m[:count], b[:count], d[:count], _HALF, GRID_BITS, out[start : start + count])
    return out
