"""Local DP-SGD: every local step clipped and noised at the client, so that whatever it sends is covered.

    sites = [500, 2000, 20000]
    sgd = privacy.LocalMechanism.of(sites, cepam.L2(1.0), noise_multiplier=1.0, batch=64, epochs=5, rounds=50)
    privacy.calibrate_each(sgd, [3.0] * 3, [1e-6] * 3)

What a client sends is computed from its noised gradients and from what was public before: post-processing, however it
is sent, and whatever the server and the other clients know. So one figure holds for an outsider, for the server, and
for both together with all other clients. Noise that the codec adds on the way comes on top and is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from cepam.clip import Adjacency, Clip
from cepam.distributions.laws import Gaussian, Law
from cepam.lattices.lattice import Integer, Lattice
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, Sampling, check_count

LINE = Integer(1)
EVERYONE = ("outsider", "server", "server with all other clients")
"""The observers of noised local steps: what reaches any of them was noised before, so one figure is for all."""


def steps_of(records: int, batch: float, epochs: int) -> int:
    """The local steps that so many epochs are: each record is drawn so often in expectation, or a little more.

    Args:
        records: Records of the client.
        batch: Expected records per step.
        epochs: Passes over the records.

    Returns:
        A number of steps.
    """
    check_count("records", records)
    check_count("epochs", epochs)
    return epochs * math.ceil(records / batch)


@dataclass(frozen=True)
class LocalMechanism(Mechanism):
    """A run of local DP-SGD: client j makes `steps[j]` noisy local steps per round and sends the result.

    Args:
        clients: A client's `law` is the noise on one step's sum of clipped gradients over the expected batch; its
            `draws` is that batch, sampled by Poisson sampling afresh in each step.
        steps: Local steps per round, one number per client.
        sampling: Must be `poisson`; each example is clipped.
        colluders: Other clients that pool what they know. They change nothing: each client's own noise protects it.

    Other fields are those of `Mechanism`.

    Raises:
        ValueError: `steps` does not fit the clients, or clipping, sampling or noise are of another kind.

    Guarantee: a record is charged for each step of its own client and for nothing else, whoever sees the messages
    (docs/proofs/mechanisms-and-sampling.md, "Noise inside local steps"; tests/privacy/test_local.py).
    """

    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.clients):
            raise ValueError(f"steps must give one count for each of {len(self.clients)} clients, got {self.steps!r}")
        for many in self.steps:
            check_count("steps", many)
        if self.clipped != "example" or self.sampling.kind != "poisson" or not self.law_is_gaussian:
            raise ValueError("local DP-SGD clips each example, draws by poisson and adds Gaussian noise")
        super().__post_init__()

    @classmethod
    def of(
        cls, records: Sequence[int], clip: Clip, noise_multiplier: float, batch: float, epochs: int = 1, *,
        rounds: int = 1, adjacency: Adjacency = "add-remove", coordinates: int | None = None,
    ) -> LocalMechanism:  # fmt: skip
        """Make a run whose clients all use one clip, one batch and one noise multiplier.

        Args:
            records: Records of each client.
            clip: The l2 clip of an example's gradient.
            noise_multiplier: Standard deviation of the noise on a step's sum of gradients, in units of the clipping
                norm.
            batch: Expected batch of a client's step.
            epochs: Local epochs per round.
            rounds: Rounds of the run.
            adjacency: How neighboring data sets differ.
            coordinates: Length of an update; without it the mechanism's rounding is not charged.

        Returns:
            The mechanism.
        """
        law, total = Gaussian(noise_multiplier * clip.bound / batch), sum(records)
        clients = tuple(Client(law, many, many / total, batch, None, LINE, searched=False) for many in records)
        steps = tuple(steps_of(many, batch, epochs) for many in records)
        return cls(
            clients, clip, Sampling("poisson", batch), rounds, 0, adjacency, "example", coordinates, steps=steps
        )  # fmt: skip

    @property
    def events(self) -> int:
        """The most steps that a client makes in all rounds."""
        return self.rounds * max(self.steps)

    @property
    def noisings(self) -> int:
        """As `events`: what others draw is no concern of a record."""
        return self.events

    def events_of(self, client: int) -> int:
        """How many steps this client makes in all rounds.

        Args:
            client: The place of the client.

        Returns:
            A number of steps.
        """
        return self.rounds * self.steps[client]

    def history(self, client: int) -> Hashable:
        """What a client's guarantee depends on: as for any release, and how many steps it makes.

        Args:
            client: The place of the client.

        Returns:
            Equal values for clients of equal guarantees.
        """
        return super().history(client), self.steps[client]

    def hidden_by(self, client: int, colluders: int | None = None) -> tuple[int, ...]:
        """Itself alone: what it sends is covered by its own noise, whoever looks.

        Args:
            client: The place of the client.
            colluders: Ignored.

        Returns:
            The client's own place.
        """
        return (client,)

    def noise_against(self, client: int, colluders: int | None = None) -> float:
        """Its own noise, whoever looks.

        Args:
            client: The place of the client.
            colluders: Ignored.

        Returns:
            A standard deviation.
        """
        return self.clients[client].noise

    def sent(self) -> Counter[tuple[Law, Lattice | None]]:
        """One noisy vector a step, of the law whose scale is longest in units of its grid: no other errs more.

        Returns:
            A count of that law and lattice; empty where every client is absent.
        """
        present = [client for j, client in enumerate(self.clients) if j not in self.absent]
        longest = max(present, key=lambda client: math.frexp(client.law.scale)[0], default=None)
        return Counter() if longest is None else Counter({(longest.law, longest.lattice): 1})

    def with_noise(self, scales: Sequence[float]) -> LocalMechanism:
        """The same release with other noise scales, one for each client.

        Args:
            scales: A noise scale per client.

        Returns:
            A new mechanism.
        """
        made = super().with_noise(scales)
        assert isinstance(made, LocalMechanism)
        return made

    def alone(self, client: int) -> LocalMechanism:
        """What the same rounds would release of one client by itself.

        Args:
            client: The place of the client.

        Returns:
            A new mechanism.
        """
        return replace(
            self, clients=(self.clients[client],), colluders=0, absent=frozenset(), steps=(self.steps[client],)
        )

    def multiplier(self, client: int) -> float:
        """The noise of this client's steps, in clips over the batch.

        Args:
            client: The place of the client.

        Returns:
            The noise multiplier of its steps.
        """
        return self.clients[client].law.scale * self.sampling_of(client).draws / self.clip_of(client).bound
