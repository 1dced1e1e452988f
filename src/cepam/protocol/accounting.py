"""How a deployment counts epsilon, one round of it as a mechanism, and noise for a target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from cepam.clip import Clip, Unit
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.protocol.settings import UplinkSettings

if TYPE_CHECKING:
    from cepam.privacy import Cohort, CohortMechanism, Mechanism, Sampling

Released = Literal["auto", "average", "vectors"]
Reply = tuple[int, UplinkSettings]


@dataclass(frozen=True)
class Accounting:
    """How epsilon is counted, what a run may spend, and where its account is kept.

    Epsilon is for everything that was published so far, at `delta`.

    Args:
        delta: The probability outside the epsilon bound, in (0, 1). Default 1e-5.
        unit: What one change of the data replaces: one `record` of a client (default), or all data of one `client`. A
            client needs whole clipped updates of all its records.
        records: How many records a client holds, a public constant. It matters with `record_sampling`. Default 1.
        record_sampling: How a client draws its records, afresh and in secret for every reply. Default: it uses all of
            them, which claims no amplification.
        adjacency: `replace` one unit by another (default), or `add-remove` one.
        colluders: How many other clients pool what they know, so that their noise does not count. Default 0.
        released: What the server publishes: the weighted `average`, whose noise is that of all replies, or anything
            else, for which only a client's own noise counts (`vectors`). `auto` (default) takes the average for the
            strategies of Flower that publish nothing else.
        clipped: What is clipped: the whole `update` (default), or each `example` by the ClientApp itself.
        stable_nodes: Charge each node for the rounds it took part in. Needs one authenticated key per client. By
            default every round is charged as its worst client paid it, since ids change when a SuperNode restarts. That
            is one client's own figure, unless clients of unlike `NodeSettings` draw records: then it is a bound above.
        stateful: Sampled clients remember the rounds they took part in, as with layers that stay on them.
        budget: The largest epsilon that may be published; training ends before it is exceeded. Default: a target
            epsilon if one is given, else no limit.
        folder: Where accounts are kept, one folder per population. Default: `cepam` in Flower's home, or
            `cepam-accounts` in the FLARE server's workspace.

    Raises:
        ValueError: For a value outside its range, or a unit that the clipping does not protect.
    """

    delta: float = 1e-5
    unit: Unit = "record"
    records: int = 1
    record_sampling: Sampling | None = None
    adjacency: Literal["replace", "add-remove"] = "replace"
    colluders: int = 0
    released: Released = "auto"
    clipped: Literal["update", "example"] = "update"
    stable_nodes: bool = False
    stateful: bool = False
    budget: float | None = None
    folder: str | Path | None = None

    @classmethod
    def per_example(cls, records: int, batch: float, **options: Any) -> Self:
        """The account of clients that clip each example's gradient, as `cepam.torch.PerExampleGradients` does.

        It sets `clipped="example"`, `adjacency="add-remove"` and secret Poisson draws of `record_sampling`.

        Args:
            records: How many records a client holds, a public constant.
            batch: How many of them a reply draws on average, the `expected_batch_size` of `gradient`.
            options: Any other argument of `Accounting`.

        Raises:
            ValueError: `batch` is not in (0, records], or an option is outside its range.
        """
        from cepam.privacy import Sampling

        if not 0.0 < batch <= records:
            raise ValueError(f"batch must lie in (0, {records}], the records, got {batch!r}")
        drawn = Sampling("poisson", batch)
        return cls(records=records, record_sampling=drawn, clipped="example", adjacency="add-remove", **options)

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if isinstance(self.records, bool) or not isinstance(self.records, int) or self.records < 1:
            raise ValueError(f"records must be a positive integer, got {self.records!r}")
        if isinstance(self.colluders, bool) or not isinstance(self.colluders, int) or self.colluders < 0:
            raise ValueError(f"colluders must be a count, got {self.colluders!r}")
        if self.released not in get_args(Released):
            raise ValueError(f"released must be one of {', '.join(get_args(Released))}, got {self.released!r}")
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget must be a positive epsilon, got {self.budget!r}")
        drawn = self.record_sampling is not None and self.record_sampling.kind != "all"
        if self.unit == "client" and (self.clipped != "update" or drawn):
            raise ValueError("unit 'client' needs clipped='update' and no draws of records: those do not hide a client")

    def mechanism(self, replies: Iterable[Reply], average: bool, coordinates: int) -> Mechanism:
        """One round in which these replies, of so many coordinates each, were used; ValueError if there is none.

        A node that it was offered to twice and answered twice stands there twice, and is charged for both.
        Guarantee: fewer replies have less noise and cost more (tests/protocol/test_account.py).
        """
        from cepam.privacy import Client, Mechanism, Sampling

        used = sorted(replies, key=lambda reply: reply[0])
        if not used:
            raise ValueError("a round without a reply releases nothing")
        others = len({node for node, _ in used}) - 1
        return Mechanism(
            clients=tuple(
                Client(s.law, s.records, s.weight, None, s.clip, s.lattice, s.codec.searches) for _, s in used
            ),
            clip=used[0][1].clip,
            sampling=self.record_sampling or Sampling("all"),
            colluders=min(self.colluders, others) if average else others,
            adjacency=self.adjacency,
            clipped=self.clipped,
            coordinates=coordinates,
            nodes=tuple(node for node, _ in used),
            unit=self.unit,
        )

    def cohort_mechanism(self, cohort: Cohort, settings: UplinkSettings, coordinates: int) -> CohortMechanism:
        """One round of a cohort that was sampled in secret, its noise compensated whoever replied."""
        from cepam.privacy import Client, CohortMechanism

        share, searched = settings.law.scale, settings.codec.searches
        kind = Client(settings.law, settings.records, 1.0 / cohort.size, None, None, settings.lattice, searched)
        return CohortMechanism(
            (kind,),
            settings.clip,
            colluders=min(self.colluders, cohort.population - 1),
            adjacency=self.adjacency,
            coordinates=coordinates,
            cohort=cohort,
            stateful=self.stateful,
            bit=share * math.sqrt(cohort.cap) / settings.bit if settings.bit else None,
        )


@dataclass(frozen=True)
class Target:
    """A target epsilon: the noise is the smallest that meets it over a whole run.

    Args:
        epsilon: The target, positive; also the budget unless `Accounting.budget` says otherwise.
        rounds: How many rounds the run has. Default: those that `start` is given.
        nodes: How many replies a round has. Default: as many as the first round samples.
        noise: The family of the noise, `cepam.Gaussian` (default) or `cepam.Laplace`.

    Raises:
        ValueError: For a value outside its range.
    """

    epsilon: float
    rounds: int | None = None
    nodes: int | None = None
    noise: type[Law] = Gaussian

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon!r}")
        for name, value in (("rounds", self.rounds), ("nodes", self.nodes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.noise not in (Gaussian, Laplace):
            raise ValueError(f"noise of a target must be cepam.Gaussian or cepam.Laplace itself, got {self.noise!r}")

    def meet(self, settings: UplinkSettings, one: Mechanism, delta: float) -> UplinkSettings:
        """The settings with the smallest noise that meets the target over rounds like `one`; whatever scale they had.

        Where the search coder's arithmetic alone leaves no finite figure, the coder is `"layered"`.
        Guarantee: the account of such a run ends at or under epsilon (tests/protocol/test_target.py).
        """
        from cepam.privacy import calibrate

        met = calibrate(self._whole(one), self.epsilon, delta)
        return replace(settings_for(settings, met), law=met.clients[0].law)

    def describe(self, one: Mechanism) -> str:
        """What the noise of rounds like `one` means for the model, in a line."""
        from cepam.privacy import noise_to_clip

        run, nodes = self._whole(one), self.nodes or 1
        met = f"{one.clients[0].law} meets epsilon {self.epsilon:g} over {run.rounds} rounds of {nodes} replies"
        return f"{met}; {noise_to_clip(run).advice}"

    def _whole(self, one: Mechanism) -> Mechanism:
        if self.rounds is None:
            raise ValueError("rounds must be given where a strategy is not run by `start`")
        return one.over(self.rounds)


def settings_for(settings: UplinkSettings, run: Mechanism) -> UplinkSettings:
    """The settings, of coder `"layered"` where the clients of the run are charged as never searching."""
    return replace(settings, coder="layered") if settings.codec.searches and not run.searched() else settings


def noise_of(noise: Law | None, epsilon: float | Target | None, clip: Clip) -> tuple[Law, Target | None]:
    """Find the law and the target of a run, of which exactly one is given.

    Args:
        noise: The law of each client's noise.
        epsilon: The target that a law is calibrated to.
        clip: The clip, which gives the law its first scale while a target is not met yet.

    Returns:
        The law, and the target or None. With a target the law has the right family and any scale.

    Raises:
        ValueError: Where both are given, or none, or a law without a scale.
    """
    if (noise is None) == (epsilon is None):
        raise ValueError(f"exactly one of noise and epsilon must be given, got noise={noise!r} and epsilon={epsilon!r}")
    if isinstance(noise, type):
        raise ValueError(f"noise must have a scale, such as cepam.Gaussian(0.2), got {noise!r}: epsilon=… finds one")
    if noise is not None:
        return noise, None
    target = epsilon if isinstance(epsilon, Target) else Target(epsilon)  # type: ignore[arg-type]  # not None here
    return target.noise(clip.bound), target  # type: ignore[call-arg]  # both families take their scale
