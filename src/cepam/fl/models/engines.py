"""Networks that other distributions bring, on the CPU: an engine of one's own for the modules that it knows.

    [project.entry-points."cepam.networks"]
    compiled = "cepam_paper.compiled:compiled_network"

The value is an `Engine`. It is asked where the loss is cross-entropy on class numbers, and PyTorch where it declines.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from torch import nn

from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import Network
from cepam.fl.models.layers import ordinary

GROUP = "cepam.networks"
Engine = Callable[[nn.Module, Dataset], Network | None]
"""The network of a module on data that are numbers, its weights those that are trained, in order; None: not by me."""


def brought(module: nn.Module, data: Dataset) -> Network | None:
    """The network by the first installed engine, in the order of their names, that takes the module.

    None is asked where the kinds of layers do not say what the module computes (`layers.ordinary`).
    """
    if not ordinary(module):
        return None
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        try:
            engine: Engine = point.load()
        except Exception as broken:
            raise ValueError(
                f"the network engine {point.name!r} ({point.value}) is installed but cannot be loaded: "
                f"{type(broken).__name__}: {broken}; repair it, uninstall it, or ask for PyTorch (device cpu-torch)"
            ) from broken
        network = engine(module, data)
        if network is not None:
            return network
    return None


def engine_of(network: Network) -> str:
    """Whose arithmetic a network is, for the record of a run: its class, by its full name."""
    return f"{type(network).__module__}.{type(network).__qualname__}"
