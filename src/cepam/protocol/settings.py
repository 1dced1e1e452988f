"""What the server tells each client about its uplink: law, clip, lattice, coder, and what the reply holds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cepam.clip import CLIPS, L1, L2, Clip, Unit
from cepam.codec.codec import Codec, CoderName
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.lattices.lattice import Integer, Lattice, Search, lattice_named
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig

Update = Literal["parameters", "gradient"]
_LAWS: dict[str, type[Gaussian] | type[Laplace]] = {"gaussian": Gaussian, "laplace": Laplace}


@dataclass(frozen=True)
class UplinkSettings:
    """One client's uplink; the settings travel from the server to the client with every training message.

    `weight` is the client's public weight in the average, `records` how many records it holds: both are constants
    that the server knows beforehand, never what a reply claims. `padding` pads messages to a multiple of that many
    bytes. `update` says what the ClientApp replies with: trained `parameters`, of which the difference against the
    broadcast arrays is sent, or a `gradient`, which is sent as it is. `unit` tells the client what the run's epsilon is
    for: one of its records, or all of its data. A `bit` adds one coordinate for adaptive clipping: +bit if the update's
    norm was within the clip, -bit if not. `correlated_noise` correlates the noise of a client's messages
    (`cepam.protocol.correlated_noise`).
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
        if not isinstance(self.law, (Gaussian, Laplace)):
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
        stream = {"stream": plain} if plain else {}
        return json.dumps(
            {
                **stream,
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
                law=_LAWS[law](scale),
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
