"""Aggregation of local DP-SGD: every local step was noised, so whoever opens an update is covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.accounting import empty_accountant, plan_clients, run_warnings
from cepam.fl.aggregation.trusted_server import AggregatorContext, Floats, Index, TrustedServerAggregator
from cepam.fl.clients.local_dp_sgd import StepPlan
from cepam.fl.clients.sending import ClientPlan, Senders
from cepam.fl.config.settings import ClientOverride, Settings
from cepam.privacy import Client, LocalMechanism, Sampling, calibrate_each, steps_of
from cepam.privacy.mechanisms.local import LINE


class LocalDpAggregator(TrustedServerAggregator):
    """Messages as the scheme says, without more noise or with: nothing of that is counted, and nothing is clipped.

    Guarantee: one epsilon for an outsider, the server and all other clients
    (docs/proofs/mechanisms-and-sampling.md, "Noise inside local steps"; tests/fl/clients/test_local_dp_sgd.py). Who
    does not reply costs nobody anything.
    """

    def __init__(self, row: AggregatorContext) -> None:
        self.row, self.settings, self.vectors = row, row.settings, row.vectors
        sending = plan_clients(_sending(row.settings), row.held, row.vectors.size, row.vectors.tensors)
        self.mechanism = mechanism_of_steps(row.settings, row.held, row.vectors.size)
        steps = [
            StepPlan(
                Gaussian(who.law.scale),
                L2(self.mechanism.clip_of(k).bound),
                float(row.settings.training.batch_size),
                many,
            )
            for k, (who, many) in enumerate(zip(self.mechanism.clients, self.mechanism.steps))
        ]
        self.plans = tuple(
            replace(plan, steps=each, codec=plan.codec if row.codecs is None else row.codecs(k))
            for k, (plan, each) in enumerate(zip(sending, steps))
        )
        self.senders = Senders(row.settings, row.draws, row.run_id, self.plans, row.vectors.arrays, None)
        self.accountant = empty_accountant(row.settings)

    @property
    def warnings(self) -> list[str]:
        return run_warnings(self.settings, None, self.plans, self.vectors.size)

    def bounds(self, number: int, clients: Sequence[int]) -> Floats:
        return np.array([self._steps(k).clip.bound for k in clients], dtype=np.float32)

    def _steps(self, client: int) -> StepPlan:
        plan: ClientPlan = self.plans[client]
        assert plan.steps is not None
        return plan.steps


def _sending(settings: Settings) -> Settings:
    """The settings of the uplink alone: the scheme and its own noise, no clip, no target."""
    client = tuple(replace(each, epsilon=None, delta=None, clipping_norm=None) for each in settings.clients.overrides)
    return settings.updated({
        "training.update": "difference", "training.record_sampling": "replacement", "privacy.norm_type": "none",
        "privacy.epsilon": None, "privacy.step_noise_multiplier": None, "clients.overrides": client,
    })  # fmt: skip


def mechanism_of_steps(settings: Settings, held: Index, size: int) -> LocalMechanism:
    """One round of local steps as the accountant sees it, each client with the noise that its target needs."""
    own = {k: each for each in settings.clients.overrides for k in each.clients}
    differing = [own.get(k, ClientOverride((k,))) for k in range(len(held))]
    clips = [L2(each.clipping_norm or settings.privacy.clipping_norm) for each in differing]
    start, batch = settings.privacy.step_noise_multiplier or 1.0, float(settings.training.batch_size)
    total = float(held.sum())
    made = LocalMechanism(
        tuple(
            Client(
                Gaussian(start * clip.bound / batch), int(many), float(many) / total, batch, clip, LINE, searched=False
            )
            for many, clip in zip(held.tolist(), clips)
        ),
        L2(settings.privacy.clipping_norm), Sampling("poisson", batch), settings.training.rounds, 0,
        settings.privacy.adjacency, "example", size,  # type: ignore[arg-type]
        steps=tuple(steps_of(int(many), batch, settings.training.local_epochs) for many in held.tolist()),
    )  # fmt: skip
    if settings.privacy.step_noise_multiplier is None:
        targets = [each.epsilon or settings.privacy.epsilon or 0.0 for each in differing]
        noised = calibrate_each(made, targets, [each.delta or settings.privacy.delta for each in differing])
        made = made.with_noise([who.law.scale for who in noised.clients])
    return replace(made, rounds=1)
