"""Our accountant behind Flower's `PrivacyAccountant` protocol: for Flower's own differential-privacy strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

if TYPE_CHECKING:
    from cepam.privacy import SubsampledMechanism

METHOD = "cepam-pld"


class PldAccountant:
    """Flower's `PrivacyAccountant`, composing privacy-loss distributions, so tighter than its Rényi accountant.

    For Flower's own strategies with fixed clipping, on the server or on the clients; they stop before a round would
    exceed `max_epsilon` (`flwr.serverapp.exception.PrivacyBudgetExhausted`). Figures are for whole clients. A replaced
    client counts as two clipping norms, where Flower's own accountant counts one: ours is then the larger figure.
    `Private` and `SecureAggregation` have an account of their own: `Accounting`, and `privacy_spent()` after a run.
    Guarantee: never below the truth; tests/flower/test_accountant.py compares with Flower's own.

    Example:
        ```python
        config = PrivacyConfig(
            target_delta=1e-5, population_size=100, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION, max_epsilon=4.0,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=100,
            accountant=cepam.flower.PldAccountant(config),
        )
        ```

    Args:
        config: Flower's `PrivacyConfig`.

    Raises:
        ValueError: By `compose` and `would_exceed`, for an event that is not Flower's `GaussianPrivacyEvent` or is of
            another population. Records, Laplace noise and correlated noise have no such event.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self._config = config
        self._events: dict[GaussianPrivacyEvent, int] = {}

    @property
    def config(self) -> PrivacyConfig:
        """Flower's configuration: delta, population, relation and sampling."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases have been composed."""
        return sum(self._events.values())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add releases of one kind.

        Args:
            event: Flower's event of one release.
            count: How many there were.

        Raises:
            ValueError: The event is not Gaussian or of another population, or the count is not a positive integer.
        """
        self._check(event, count)
        self._events[event] = self._events.get(event, 0) + count

    def get_epsilon(self, delta: float) -> float:
        """epsilon of everything composed, at delta.

        Args:
            delta: delta of the guarantee.

        Returns:
            epsilon; infinite where no finite bound is available.
        """
        return self._epsilon(self._events, delta)

    def get_delta(self, epsilon: float) -> float:
        """delta of everything composed, at epsilon.

        Args:
            epsilon: epsilon of the guarantee.

        Returns:
            delta.
        """
        from cepam.privacy.composition.losses import delta_of, gathered

        return delta_of(gathered((self._charge(event), times) for event, times in self._events.items()), epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What has been spent.

        Args:
            delta: delta of the guarantee. Default: the configuration's.

        Returns:
            Flower's `PrivacySpent`.
        """
        at = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, METHOD)

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether more releases of one kind would bring epsilon above a limit, at the configuration's delta.

        Args:
            event: Flower's event of one release.
            max_epsilon: The limit. Default: the configuration's.
            count: How many releases.

        Returns:
            Whether epsilon would be above the limit.

        Raises:
            ValueError: No limit is given, or the event is refused as by `compose`.
        """
        self._check(event, count)
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon must be given here or in the configuration")
        events = {**self._events, event: self._events.get(event, 0) + count}
        return self._epsilon(events, self._config.target_delta) > limit

    def state_dict(self) -> dict[str, object]:
        """What has been composed, for a checkpoint.

        Returns:
            Plain values.
        """
        return {
            "method": METHOD,
            "configuration": self._configuration(),
            "events": [
                [event.noise_multiplier, event.sample_size, event.population_size, times]
                for event, times in self._events.items()
            ],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take up what `state_dict` gave, in the place of what was composed.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: The state is another accountant's, or of another configuration.
        """
        events = state.get("events")
        if state.get("method") != METHOD or not isinstance(events, list):
            raise ValueError(f"the state is not one of this accountant's: method {state.get('method')!r}")
        if state.get("configuration") != self._configuration():
            raise ValueError(
                f"the state is of another configuration: {state.get('configuration')!r}, here {self._configuration()!r}"
            )
        self._events = {GaussianPrivacyEvent(z, sample, people): times for z, sample, people, times in events}

    def _configuration(self) -> list[object]:
        """What the same events cost differently under: population, relation, sampling."""
        return [
            self._config.population_size,
            str(self._config.neighboring_relation.value),
            str(self._config.sampling_method.value),
        ]

    def _check(self, event: GaussianPrivacyEvent, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count must be a positive integer, got {count!r}")
        if not isinstance(event, GaussianPrivacyEvent):
            raise ValueError(
                f"event must be a flwr.serverapp.GaussianPrivacyEvent, got {type(event).__name__}: records, Laplace "
                "noise and correlated noise are accounted by cepam.flower.Private"
            )
        if event.population_size != self._config.population_size:
            raise ValueError(
                f"the event's population is {event.population_size}, the configuration's {self._config.population_size}"
            )

    def _epsilon(self, events: dict[GaussianPrivacyEvent, int], delta: float) -> float:
        from cepam.privacy.composition.losses import epsilon_of, gathered

        return epsilon_of(gathered((self._charge(event), times) for event, times in events.items()), delta)

    def _charge(self, event: GaussianPrivacyEvent) -> SubsampledMechanism:
        """One release as our accountant reads it: a replaced client moves the sum twice as far as one left out."""
        from cepam.privacy import GaussianShift, SubsampledMechanism

        replaced = self._config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        sampled = self._config.sampling_method is not SamplingMethod.NO_AMPLIFICATION
        return SubsampledMechanism(
            GaussianShift((2.0 if replaced else 1.0) / event.noise_multiplier),
            event.sample_size / event.population_size if sampled else 1.0,
            "replace" if replaced else "add-remove",
        )
