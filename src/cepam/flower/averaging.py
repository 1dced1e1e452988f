"""Which strategies of Flower can be wrapped, and which publish nothing but a function of the weighted average.

To add a strategy whose published model depends on replies through their weighted average alone, name it in `AVERAGING`.
A subclass of one of them is not covered by its parent's name: it may publish more.
"""

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


def check_strategy(strategy: object) -> None:
    """Refuse what cannot be wrapped, with the way out for strategies of Flower's older interface."""
    if isinstance(strategy, Strategy):
        return
    kind = type(strategy)
    if kind.__module__.startswith("flwr.server."):
        raise ValueError(
            f"strategy is {kind.__name__} of Flower's legacy interface (flwr.server, NumPyClient): take "
            f"flwr.serverapp.strategy.{kind.__name__}, and @app.train() in the ClientApp (docs/flower.md)"
        )
    raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {kind.__name__}")
