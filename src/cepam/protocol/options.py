"""Options of a deployment, the same for Flower and NVIDIA FLARE: small frozen objects with checked values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from cepam.clip import Clip, Unit
from cepam.codec.codec import CoderName
from cepam.distributions.laws import Law
from cepam.lattices.lattice import Lattice
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.settings import Update, UplinkSettings, lattice_from_json

DropoutHandling = Literal["auto", "compensate", "charge"]
Step = float | Callable[[int], float]


@dataclass(frozen=True)
class Compression:
    """How updates are quantized and coded.

    Args:
        lattice: The lattice, or its name such as `"E8"`. Default `"Z1"`.
        coder: `"auto"` (default): far fewer bytes where noise drowns updates, on Z1; `"layered"`: never that; or the
            `"paper"`'s.
        padding: Pad messages to a multiple of so many bytes, so that their length tells less about the update's norm.
            Default: no padding.

    Raises:
        ValueError: For a lattice or coder that does not exist, or a padding below 1.
    """

    lattice: Lattice | str = "Z1"
    coder: CoderName = "auto"
    padding: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.lattice, str):
            lattice_from_json(self.lattice)
        if self.coder not in get_args(CoderName):
            raise ValueError(f"coder must be one of {', '.join(get_args(CoderName))}, got {self.coder!r}")
        if self.padding is not None and (type(self.padding) is not int or self.padding < 1):
            raise ValueError(f"padding must be a positive number of bytes, or None, got {self.padding!r}")

    @property
    def on(self) -> Lattice:
        """The lattice itself, where it was given by name."""
        return lattice_from_json(self.lattice) if isinstance(self.lattice, str) else self.lattice

    def settings(
        self,
        law: Law,
        clip: Clip,
        update: Update = "parameters",
        weight: float = 1.0,
        records: int = 1,
        unit: Unit = "record",
        bit: float = 0.0,
        correlated_noise: CorrelatedNoiseConfig | None = None,
    ) -> UplinkSettings:
        """Build what the server tells a client about its uplink."""
        return UplinkSettings(
            law, clip, self.on, self.coder, self.padding, update, weight, records, unit, bit, correlated_noise
        )


@dataclass(frozen=True)
class Dropouts:
    """What becomes of a round in which replies are missing.

    Args:
        handling: `compensate`: the server adds the noise of the replies that are missing and divides by all sampled
            nodes, so that epsilon does not depend on who replied. `charge`: the replies that came are averaged, and the
            noise that is in them is charged. `auto` (default) compensates where that is possible: Gaussian noise, and
            nothing but the average is published.
        least_replies: A round with fewer good replies publishes nothing and costs nothing. Default 1.

    Raises:
        ValueError: For another handling, or `least_replies` below 1.
    """

    handling: DropoutHandling = "auto"
    least_replies: int = 1

    def __post_init__(self) -> None:
        if self.handling not in get_args(DropoutHandling):
            raise ValueError(
                f"dropout handling must be one of {', '.join(get_args(DropoutHandling))}, got {self.handling!r}"
            )
        if type(self.least_replies) is not int or self.least_replies < 1:
            raise ValueError(f"least_replies must be at least 1, got {self.least_replies!r}")


@dataclass(frozen=True)
class QuantizedBroadcast:
    """The downlink as a quantized broadcast: models travel as multiples of one public step.

    Args:
        step: The quantization step in units of the weights, or a function of the round. Default: `step_factor` times
            the noise by which a round moves the model, and never larger than before.
        step_factor: The step in standard deviations of that noise, 16 by default. A larger one takes fewer bits and
            rounds more.

    Raises:
        ValueError: For a step or a factor that is not a positive number.
    """

    step: Step | None = None
    step_factor: float = 16.0

    def __post_init__(self) -> None:
        if self.step is not None and not callable(self.step) and not 0.0 < self.step < math.inf:
            raise ValueError(f"step must be a positive number, or a function of the round, got {self.step!r}")
        if not 0.0 < self.step_factor < math.inf:
            raise ValueError(f"step_factor must be a positive number, got {self.step_factor!r}")


@dataclass(frozen=True)
class Authentication:
    """How both ends of a key agreement know each other.

    Args:
        required: Drop replies whose key agreement is not signed with the node's registered key. By default they are
            used, and one warning per run says so.
        server_key: A private key file (OpenSSH) with which the server signs its offers, for nodes that know the public
            key. Default: offers are not signed.
    """

    required: bool = False
    server_key: str | Path | None = None

    def __post_init__(self) -> None:
        if type(self.required) is not bool:
            raise ValueError(f"required must be True or False, got {self.required!r}")

    def read_server_key(self) -> bytes | None:
        """Read the server's private key file, if one is named."""
        return Path(self.server_key).read_bytes() if self.server_key else None


@dataclass(frozen=True)
class Gradient:
    """ClientApps reply with a gradient instead of trained parameters.

    Args:
        learning_rate: The strategy is handed the broadcast model less this rate times the noisy gradient. Default 1.
            None hands on the noisy gradient itself.

    Raises:
        ValueError: For a rate that is not positive.
    """

    learning_rate: float | None = 1.0

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, or None, got {self.learning_rate!r}")


@dataclass(frozen=True)
class NodeSettings:
    """What differs for one node; what is not given is the strategy's.

    Args:
        noise: The law of this node's noise.
        clip: The bound on its update.
        weight: Its public weight in the average. Default 1.
        records: How many records it holds, a public constant.
        compression: How its updates are coded.
    """

    noise: Law | None = None
    clip: Clip | None = None
    weight: float = 1.0
    records: int | None = None
    compression: Compression | None = None

    def over(self, common: UplinkSettings) -> UplinkSettings:
        """The settings of this node, where these are everybody's."""
        own = replace(
            common,
            law=common.law if self.noise is None else self.noise,
            clip=common.clip if self.clip is None else self.clip,
            weight=self.weight,
            records=common.records if self.records is None else self.records,
        )
        if self.compression is None:
            return own
        coded = self.compression
        return replace(own, lattice=coded.on, coder=coded.coder, padding=coded.padding)
