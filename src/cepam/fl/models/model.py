"""Models as vectors: a module, the number m of its weights, and where the weights start.

A network is a model lowered onto a data set: it turns rows of weights into sums of gradients and into accuracies. It
runs in PyTorch, or on the CPU by an engine that another distribution brings (`interface.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Report, quiet
from cepam.fl.models import interface
from cepam.fl.models.features import Features, looks_up, scattering
from cepam.fl.models.interface import Floats, Index, Judge, Network, Objective, Scores
from cepam.fl.models.llama import ADAPTED, smollm2_adapted
from cepam.fl.models.network import TorchNetwork
from cepam.fl.models.pretrained import PRETRAINED, pretrained
from cepam.fl.models.scattering import MAPS
from cepam.fl.models.sequences import LaggedTokens, token_accuracy, token_loss
from cepam.torch.mapped import check_layers

__all__ = ["ACTIVATIONS", "NAMES", "Floats", "Index", "Model", "Network", "Scores", "build", "linear_on", "resolved"]

NAMES = (
    "cnn", "cnn-private", "mlp", "linear", "scattering-linear", "scattering-cnn", "next-token", ADAPTED, *PRETRAINED
)  # fmt: skip
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}

WORTH_A_GPU = 100_000


class Model:
    """A PyTorch module as a function of one vector of weights, which is what clients train and send.

    Any module will do that treats each example by itself: dropout, recurrent layers, embeddings of whole numbers,
    transformers, group and layer normalization. Batch normalization is refused. Parameters with
    `requires_grad=False` are neither sent nor counted; they stay as `make` built them and are in `state_dict` with
    the rest.

    Args:
        make: Builds the module. What it draws from torch's generator comes from the seed alone.
        name: What errors and records of runs call it.
        features: A frozen module in front. The module is then a head, which sees one row of numbers per example.
        loss: `loss(answers, targets)` sees a batch of one example and gives one number, as PyTorch's losses do. By
            default cross-entropy on class numbers. With a loss of your own the best weights are those of the lowest
            loss, else of the highest accuracy.
        metrics: Functions of the same kind by name, reported beside the loss as means over the examples.

    Raises:
        ValueError: The module has no weight that is trained, or a layer in which examples meet.
    """

    def __init__(
        self, make: Callable[[], nn.Module], name: str = "own", features: Features | None = None, *,
        loss: Judge | None = None, metrics: Mapping[str, Judge] | None = None,
    ) -> None:  # fmt: skip
        self.make, self.features = make, features
        self.name = name
        self.objective = Objective(loss, dict(metrics or {}))
        self.module = self._seeded(0)
        check_layers(self.module)
        self.size = sum(p.numel() for p in trainable(self.module))
        if self.size == 0:
            raise ValueError("a model must have at least one weight that is trained (requires_grad)")

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def initial(self, seed: int) -> Floats:
        """The starting weights of this seed.

        Args:
            seed: Seed of the module's draws.

        Returns:
            A float32 vector.
        """
        parameters = trainable(self._seeded(seed))
        vector = torch.nn.utils.parameters_to_vector([p.detach() for p in parameters])
        return vector.to(torch.float32).numpy().copy()

    def state_dict(self, weights: Floats) -> dict[str, torch.Tensor]:
        """The weights as PyTorch keeps them, to load into the module outside.

        Args:
            weights: A vector, such as `initial` gives.

        Returns:
            Tensors by name, frozen parameters and buffers included.
        """
        module = self._seeded(0)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), trainable(module))
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def assembled(self, state: dict[str, torch.Tensor]) -> nn.Module:
        """A module that answers for raw examples: the features, where there are any, and the module with this state.

        Args:
            state: Tensors by name, such as a run's `final.pt` holds for a seed.

        Returns:
            A module on the CPU.
        """
        module = self._seeded(0)
        module.load_state_dict(state)
        return module if self.features is None else nn.Sequential(self.features.whole, module).cpu()

    def on(self, data: Dataset, device: str = "auto") -> Network:
        """The network of this model on a data set; `device` is auto, cpu, cpu-torch (no engine is asked) or cuda.

        Args:
            data: The data set.
            device: `auto`, `cpu`, `cpu-torch` (PyTorch on the CPU) or `cuda`.

        Returns:
            What a run trains and evaluates.

        Raises:
            ValueError: The data set has no classes and the model no loss of its own, or the device is unknown or
                missing.
        """
        chosen = resolved(device)
        if self.objective.classifies and not data.classes:
            raise ValueError(f"data set {data.name!r} has targets that are no class numbers: give the model a loss")
        where = "cuda" if chosen == "cuda" else "cpu"
        if self.features is not None:
            return TorchNetwork(self.module, self.features.of(data, where), where, self.objective)
        data = data if looks_up(self.module) else data.as_numbers()
        plain = self.objective.plain and data.classes != 2  # engines know no area under the curve
        brought = interface.brought(self.module, data) if chosen == "cpu" and plain else None
        return TorchNetwork(self.module, data, where, self.objective) if brought is None else brought


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained; frozen ones are not among them."""
    return [p for p in module.parameters() if p.requires_grad]


def resolved(device: str, coordinates: int | None = None) -> str:
    """The device that a setting stands for, one of cpu, cpu-torch and cuda.

    `auto` takes a GPU where there is one and where it pays: `coordinates` counts weights times clients for each of a
    round's steps that follow one another.
    """
    if device not in ("auto", "cpu", "cpu-torch", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cpu-torch, cuda, got {device!r}")
    if device == "auto":
        pays = coordinates is None or coordinates >= WORTH_A_GPU
        return "cuda" if pays and torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch sees no CUDA device")
    return device


def _convolutions(
    data: Dataset, first: int, second: int, hidden: int | None, act: type[nn.Module]
) -> Callable[[], nn.Module]:
    if len(data.shape) != 3 or min(data.shape[1:]) < 16:
        raise ValueError(f"a cnn needs images of 16 by 16 or more, got examples of shape {data.shape}")
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in data.shape[1:])
    features = second * rows * columns

    def make() -> nn.Module:
        head = [nn.Linear(features, data.classes)] if hidden is None else [
            nn.Linear(features, hidden), act(), nn.Linear(hidden, data.classes)
        ]  # fmt: skip
        return nn.Sequential(
            nn.Conv2d(data.shape[0], first, 5), nn.MaxPool2d(2), act(),
            nn.Conv2d(first, second, 5), nn.MaxPool2d(2), act(), nn.Flatten(), *head,
        )  # fmt: skip

    return make


def _on_maps(data: Dataset, act: type[nn.Module]) -> Callable[[], nn.Module]:
    """Two convolutions and a linear layer on the scattering maps of images whose sides are multiples of 8."""
    maps, wide = data.shape[0] * MAPS, 64
    places = int(np.prod([side // 8 for side in data.shape[1:]]))

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(maps, wide, 3, padding=1), nn.MaxPool2d(2), act(),
            nn.Conv2d(wide, wide, 3, padding=1), act(), nn.Flatten(), nn.Linear(wide * places, data.classes),
        )  # fmt: skip

    return make


def build(name: str, data: Dataset, activation: str = "relu") -> Model:
    """The named model for a data set.

    Paper: Section V-A, `cnn`: two convolutions and two fully connected layers with max pooling, 6,422 weights on
    MNIST. Pooling before a monotone activation is the same function as after it, at a quarter of the cost.
    `cnn-private` has wider convolutions and no hidden layer (11,386 weights): under noise, fewer layers learn more.
    `scattering-cnn` has two convolutions on scattering features, as Tramèr and Boneh (2021) train privately.
    `next-token` predicts each token of a row from the last three, log-linearly (28,812 weights).

    Args:
        name: One of the built-in models.
        data: Gives the shape of inputs and the number of classes.
        activation: Of models that have a choice.

    Returns:
        A model for `train`.

    Raises:
        ValueError: The name or the activation is unknown, or the model does not suit the data.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if name in ("next-token", ADAPTED):
        if not data.tokens or data.classes or data.train_labels.shape != data.train_inputs.shape:
            raise ValueError(f"model {name!r} reads rows of tokens with a target for each, not {data.name!r}")
        make: Callable[[], nn.Module] = LaggedTokens if name == "next-token" else smollm2_adapted
        return Model(make, name, loss=token_loss, metrics={"accuracy": token_accuracy})
    if not data.classes:
        raise ValueError(
            f"model {name!r} tells classes apart, and data set {data.name!r} has values: use fl.Model(…, loss=…)"
        )
    act = ACTIVATIONS[activation]
    pixels = int(np.prod(data.shape))
    if name == "cnn":
        return Model(_convolutions(data, 6, 6, 50, act), name)
    if name == "cnn-private":
        return Model(_convolutions(data, 12, 24, None, act), name)
    if name == "mlp":
        return Model(
            lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(pixels, 32), act(), nn.Linear(32, 16), act(), nn.Linear(16, data.classes)
            ),
            name,
        )
    if name == "linear":
        return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, data.classes)), name)
    features = frozen(name, data)
    if features is not None:
        return linear_on(features, data, name) if features.shape is None else Model(_on_maps(data, act), name, features)
    raise ValueError(f"model must be one of {', '.join(NAMES)}, got {name!r}")


def frozen(name: str, data: Dataset, report: Callable[[Report], None] = quiet) -> Features | None:
    """The frozen features of a named model for images of channels, rows and columns; None where it has none."""
    if name in PRETRAINED:
        return pretrained(name, data, report)
    if name in ("scattering-linear", "scattering-cnn"):
        shape = data.shape if len(data.shape) == 3 else (1, *data.shape)
        return scattering(shape, maps=name == "scattering-cnn")
    return None


def linear_on(features: Features, data: Dataset, name: str = "own") -> Model:
    """A linear head on frozen features of this data set, started from zero.

    Args:
        features: Frozen features.
        data: Gives the number of classes.
        name: What the model is called in settings and records.

    Returns:
        A model for `train`.
    """
    size = features.size(data)

    def make() -> nn.Module:
        head = nn.Linear(size, data.classes)
        for weights in head.parameters():
            nn.init.zeros_(weights)
        return head

    return Model(make, name, features)
