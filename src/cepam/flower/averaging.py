"""Which strategies of Flower publish nothing but a function of the weighted average."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from cepam.exchange.account import Account

# Strategies of Flower whose published model depends on the replies through their weighted average alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)


def publishes_average(strategy: Strategy, account: Account) -> bool:
    """Whether the noise of all replies may be counted together: only where nothing but their average is published."""
    if account.released == "auto":
        return type(strategy) in AVERAGING
    return account.released == "average"
