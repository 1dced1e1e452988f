"""Which strategies of Flower can be wrapped, and which publish nothing but a function of the weighted average."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from cepam.protocol.accounting import Accounting

# Strategies of Flower whose published model depends on the replies through their weighted average alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)


def publishes_average(strategy: Strategy, account: Accounting) -> bool:
    """Whether the noise of all replies may be counted together: only where nothing but their average is published."""
    if account.released == "auto":
        return type(strategy) in AVERAGING
    return account.released == "average"


def check_wrapping(strategy: object, least_replies: int, budget: float | None) -> None:
    """Nothing, or a ValueError for what cannot be wrapped."""
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {type(strategy).__name__}")
    if isinstance(least_replies, bool) or not isinstance(least_replies, int) or least_replies < 1:
        raise ValueError(f"least_replies must be at least 1, got {least_replies!r}")
    if budget is not None and not budget > 0:
        raise ValueError(f"budget must be a positive epsilon, got {budget!r}")
