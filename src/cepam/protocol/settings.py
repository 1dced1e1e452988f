"""What the server tells each client about its uplink, and the options of Flower and FLARE from which it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cepam.clip import CLIPS, L1, L2, Clip, Unit
from cepam.codec.codec import Codec, CoderName
from cepam.distributions.laws import PRIVATE_LAWS, Gaussian, Law
from cepam.lattices.lattice import Integer, Lattice, Search, lattice_named
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig

Update = Literal["parameters", "gradient"]


@dataclass(frozen=True)
class UplinkSettings:
    """One client's uplink; the settings travel from the server to the client with every training message.

    `weight` is the client's public weight in the average, `records` how many records it holds: both are constants
    that the server knows beforehand, never what a reply claims. `padding` pads messages to a multiple of that many
    bytes. `update` says what the ClientApp replies with: trained `parameters`, of which the difference against the
    broadcast arrays is sent, or a `gradient`, which is sent as it is. `unit` tells the client what the run's epsilon is
    for: one of its records, or all of its data. A `bit` adds one coordinate for adaptive clipping: +bit if the update's
    norm was within the clip, -bit if not. `correlated_noise` correlates the noise of a client's messages
    (`cepam.protocol.correlated_noise`); it does not go with a `bit`, which it would release uncharged.

    Raises:
        ValueError: For a value outside its range, or options that do not go together.
    """

    law: Law
    clip: Clip
    lattice: Lattice = field(default_factory=lambda: Integer(1))
    coder: CoderName = "auto"
    padding: int | None = None
    update: Update = "parameters"
    weight: float = 1.0
    records: int = 1
    unit: Unit = "record"
    bit: float = 0.0
    correlated_noise: CorrelatedNoiseConfig | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.law, tuple(PRIVATE_LAWS.values())):
            raise ValueError(f"law must be cepam.Gaussian or cepam.Laplace, got {self.law!r}")
        if not isinstance(self.clip, (L1, L2)):
            raise ValueError(f"clip must be cepam.L2 or cepam.L1, got {self.clip!r}")
        if self.update not in get_args(Update):
            raise ValueError(f"update must be one of {', '.join(get_args(Update))}, got {self.update!r}")
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        if isinstance(self.weight, bool) or not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be positive and finite, got {self.weight!r}")
        if isinstance(self.records, bool) or not isinstance(self.records, int) or self.records < 1:
            raise ValueError(f"records must be a positive integer, got {self.records!r}")
        reach = self.codec.plan.reach
        if not (0 <= self.bit < math.inf) or (self.bit and self.clip.norm != "l2"):
            raise ValueError(f"bit must not be negative, and goes with an l2 clip, got {self.bit!r}")
        if self.bit and self.correlated_noise is not None:
            # Correlated noise is charged by the clip alone: what a bit tells would be on no account.
            raise ValueError(f"bit (AdaptiveClip) must be 0 with correlated_noise, got {self.bit!r}")
        if self.largest > reach:
            # A coordinate beyond the range cannot be sent, and whether there is one would be seen.
            carried = (
                ""
                if self.correlated_noise is None
                else f" (times {self.correlated_noise.gain:.3g}, which correlated noise can add up)"
            )
            raise ValueError(
                f"clip must be at most {reach:.3g}, the quantization range of {self.law!r}, "
                f"got {self.clip.bound!r}{carried}"
            )
        if self.correlated_noise is not None and not (isinstance(self.law, Gaussian) and isinstance(self.clip, L2)):
            raise ValueError(
                f"correlated noise needs Gaussian noise and an l2 clip, got {self.law!r} and {self.clip!r}"
            )

    @property
    def largest(self) -> float:
        """The largest norm of what an honest client encodes."""
        return math.hypot(self.clip.bound, self.bit) * (
            1.0 if self.correlated_noise is None else self.correlated_noise.gain
        )

    @property
    def beside(self) -> int:
        """How many coordinates travel beside the update's."""
        return 1 if self.bit else 0

    def clipped(self, update: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """What a client encodes: the update clipped, zeros where it is not finite, and the bit where one is asked."""
        within = self.clip.apply_or_zero(update)
        if not self.bit:
            return within
        above = not self.clip.measure(update) <= self.clip.bound
        return np.append(within, within.dtype.type(-self.bit if above else self.bit))

    @cached_property
    def codec(self) -> Codec:
        """What both ends encode and decode with, but for the size of updates."""
        bound = self.largest if self.coder == "paper" else None
        return Codec(self.law, self.lattice, self.coder, bound=bound, padding=self.padding)

    def to_json(self) -> str:
        """What the client needs, as text."""
        config = self.correlated_noise
        plain = (
            []
            if config is None
            else [float(config.decay), config.slices, config.max_participations, float(config.divisor)]
        )
        correlated = {"stream": plain} if plain else {}
        return json.dumps(
            {
                **correlated,
                "law": [self.law.name, float(self.law.scale)],
                "clip": [self.clip.norm, float(self.clip.bound)],
                "lattice": _lattice_to_json(self.lattice),
                "coder": self.coder,
                "padding": self.padding,
                "update": self.update,
                "unit": self.unit,
                "bit": float(self.bit),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> UplinkSettings:
        """The settings that `to_json` wrote; weight and records stay with the server."""
        try:
            read: dict[str, Any] = json.loads(text)
            (law, scale), (norm, bound) = read["law"], read["clip"]
            return cls(
                law=PRIVATE_LAWS[law](scale),
                clip=CLIPS[norm](bound),
                lattice=lattice_from_json(read["lattice"]),
                coder=read["coder"],
                padding=read["padding"],
                update=read["update"],
                unit=read.get("unit", "record"),
                bit=read.get("bit", 0.0),
                correlated_noise=CorrelatedNoiseConfig(*read["stream"]) if "stream" in read else None,
            )
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as unreadable:
            raise ValueError(f"the server's settings cannot be read: {unreadable!r}") from unreadable


def _lattice_to_json(lattice: Lattice) -> str | list[list[int]]:
    if lattice.search is not Search.GENERAL:
        return lattice.name
    return [[int(entry) for entry in row] for row in lattice.basis]


def lattice_from_json(read: Any) -> Lattice:
    """The lattice of this name, or with this basis.

    Raises:
        ValueError: for anything else, after little work, whatever was sent (`Lattice.from_basis`).
    """
    return lattice_named(read) if isinstance(read, str) else Lattice.from_basis(read)


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
        """Build what the server tells a client about its uplink.

        Args:
            law: The law of the client's noise.
            clip: The bound on its update.
            update: What it sends: the movement of its parameters, or a gradient.
            weight: Its public weight in the average.
            records: Records that it holds, a public constant.
            unit: What is protected: a record or a client.
            bit: Size of the bit of adaptive clipping, in the units of the update; 0 without it.
            correlated_noise: How the noise of its messages is correlated; by default it is not.

        Returns:
            The settings.

        Raises:
            ValueError: For values that do not go together.
        """
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
        """Read the server's private key file, if one is named.

        Returns:
            The bytes of the file, or None.
        """
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
        """The settings of this node, where these are everybody's.

        Args:
            common: Everybody's settings.

        Returns:
            The settings of this node.

        Raises:
            ValueError: For values that do not go together.
        """
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
