"""The settings of a run: one frozen description that a TOML file or flags can fill in."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cepam.fl.config.checks import CHECKS, one_of, positive
from cepam.fl.data.catalog import NAMES as DATA
from cepam.fl.data.clients import TABLES
from cepam.fl.data.partition import GIVEN
from cepam.fl.data.partition import NAMES as PARTITIONS
from cepam.fl.models.model import ACTIVATIONS
from cepam.fl.models.model import NAMES as MODELS
from cepam.fl.optim import OPTIMIZERS, SCHEDULES
from cepam.lattices.lattice import NAMED

OWN = "own: "
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A `module:function` that makes data or a model."""
UPDATES = ("gradient", "difference", "examples", "dp-sgd")
SCHEMES = (
    "fl", "fl+sdq", "fl+gaussian", "fl+laplace", "fl+gaussian+sdq", "fl+laplace+sdq", "cepam-gaussian", "cepam-laplace",
)  # fmt: skip
LATTICES = (*NAMED, "auto")
CODERS = ("adaptive", "paper")
CLIPS = ("l2", "l1", "none")
SCOPES = ("vector", "tensor")
SAMPLINGS = ("replacement", "without", "poisson", "all", "cyclic")
SHAPES = ("independent", "matrix")
POLICIES = ("auto", "top-up", "charge", "wait")
LOCAL_SCHEDULES = ("same", "constant")
UNITS = ("record", "client")
COHORTS = ("fixed", "poisson")
ADJACENCIES = ("replace", "add-remove")
PIXELS = ("unit", "centred")
DEVICES = ("auto", "cpu", "cpu-torch", "cuda")
DOWNLINKS = ("float32", "grid")
TRUSTS = ("server", "sum")


def about(text: str, default: Any, choices: tuple[str, ...] = ()) -> Any:
    """A field with its one line of help, shown by `cepam train --help` and written beside it in the TOML."""
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class ClientSettings:
    """What some clients do differently: any of law, scale, target, clip, weight and lattice.

    `clients` are numbers, or names where the data name their clients.
    """

    clients: tuple[int | str, ...]
    scheme: str | None = None
    noise: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    clip: float | None = None
    weight: float | None = None
    lattice: str | None = None

    def __post_init__(self) -> None:
        if not self.clients or any(not isinstance(k, str) and not _is_number(k) for k in self.clients):
            raise ValueError(f"client.clients must list client numbers or names, got {self.clients!r}")
        one_of("client.scheme", self.scheme, (*SCHEMES, None))
        one_of("client.lattice", self.lattice, (*LATTICES, None))
        for name in ("noise", "epsilon", "delta", "clip", "weight"):
            positive(f"client.{name}", getattr(self, name), optional=True)
        if self.noise is not None and self.epsilon is not None:
            raise ValueError("client: give either noise or a target epsilon, not both")


@dataclass(frozen=True)
class Settings:
    """Everything that a run is told. With `simulate`, equal settings give equal results on the same machine.

    `data` and `model` are names, `module:function` for what makes them, or `own: name` for what was handed over in
    Python; `data` may be a CSV or Parquet file.
    """

    # fmt: off
    data: str = about("Data set; or module:function that makes one, or a CSV or Parquet file.", "mnist", DATA)
    target: str | None = about("Column of such a file that is predicted.", None)
    client_column: str | None = about("Column of such a file that says whose row it is.", None)
    folder: str | None = about("Folder with the files of the data set, instead of the cache and the network.", None)
    pixels: str = about("Pixels in [0, 1], or centred in [-1, 1].", "centred", PIXELS)
    validation: int = about("Training records held out for validation.", 0)
    model: str = about("Model; or module:function that makes one.", "cnn", MODELS)
    activation: str = about("Activation between layers.", "relu", tuple(ACTIVATIONS))
    personal: str | None = about("Layers that stay on each client, by name, or last: neither sent nor charged.", None)
    clients: int = about("Number K of clients.", 30)
    partition: str = about("How records are dealt to clients.", "iid", (*PARTITIONS, GIVEN))
    alpha: float = about("Dirichlet concentration, or spread of unequal sizes.", 0.5)
    labels_each: int = about("Shards a client with partition label.", 2)
    update: str = about("A gradient, a difference, a sum over examples, or local DP-SGD.", "gradient", UPDATES)
    rounds: int = about("Number of rounds.", 80)
    tau: int = about("Iterations a round; the last one is the gradient that is sent.", 15)
    batch: int = about("Records a stochastic gradient averages.", 1)
    epochs: int = about("Local epochs a round, in steps of batch records (update dp-sgd).", 1)
    step_noise: float | None = about("Noise of a local step, in clips over the batch (update dp-sgd).", None)
    sampling: str = about("How records are drawn.", "replacement", SAMPLINGS)
    expected_batch: float = about("Examples expected a round over all clients (update examples).", 960.0)
    slices: int = about("Fixed slices of a client's records, used in turn, one a round (sampling cyclic, or poisson "
                        "with noise_shape matrix: draws are then within a slice).", 30)
    rate: float = about("Learning rate of the server step.", 0.1)
    local_rate: float | None = about("Learning rate of local steps; default: that of the server.", None)
    local_schedule: str = about("Local steps follow the schedule, or keep their rate.", "same", LOCAL_SCHEDULES)
    local_momentum: float = about("Momentum of local steps, from zero in every round.", 0.0)
    schedule: str = about("Learning-rate schedule.", "constant", SCHEDULES)
    convexity: float = about("C of the theorem's schedule.", 0.0)
    smoothness: float = about("L of the theorem's schedule.", 0.0)
    server: str = about("Server optimizer.", "sgd", OPTIMIZERS)
    momentum: float = about("Momentum of the server optimizer.", 0.9)
    average: float = about("Weight of the past in the running average that is reported (0: last weights).", 0.0)
    share: float = about("Share of the clients asked in a round.", 1.0)
    dropout: float = about("Chance that an asked client does not reply.", 0.0)
    unit: str = about("Whom the guarantee protects: one record, or all of a client's data.", "record", UNITS)
    cohort: str = about("A share of fixed size, or each client by itself (unit client).", "fixed", COHORTS)
    cohort_cap: int = about("Most clients a poisson cohort asks (0: so many that more are never drawn).", 0)
    participations: int | None = about("Most rounds that a client is asked in (unit client).", None)
    policy: str = about("Missing replies: the server tops up their noise, they are charged, or waited for; auto: "
                        "top-up with Gaussian noise, else charge.", "auto", POLICIES)
    scheme: str = about("Compression and noise.", "cepam-gaussian", SCHEMES)
    lattice: str = about("Lattice of a cepam scheme.", "Z1", LATTICES)
    coder: str = about("Entropy coder.", "adaptive", CODERS)
    noise: float | None = about("Noise scale a client: sigma (Gaussian) or b (Laplace).", None)
    epsilon: float | None = about("Target epsilon of the whole run, instead of noise.", None)
    noise_shape: str = about("Independent from round to round, or cancelled by later rounds.", "independent", SHAPES)
    carry: float | None = about("How much of a message's noise the next cancels; default: the best for the run.", None)
    matrix: str | None = about("A matrix of your own for the noise's shape, .npy: a column or a square.", None)
    delta: float = about("delta of the guarantee.", 1e-5)
    adjacency: str = about("Neighbouring data sets: replace one record, or add or remove one.", "replace", ADJACENCIES)
    clip: float = about("Clipping bound gamma.", 1.0)
    clip_quantile: float | None = about("The clip follows this quantile of the norms (unit client).", None)
    clip_norm: str = about("Norm that is clipped.", "l2", CLIPS)
    clip_scope: str = about("Clip the whole vector, or each tensor by itself (as published).", "vector", SCOPES)
    step: float = about("Cell of the sdq schemes.", 1e-3)
    downlink: str = about("New weights as float32, or as differences on one public grid.", "float32", DOWNLINKS)
    bucket: int | None = about("Pad messages to a multiple of so many bytes: lengths then tell less.", None)
    trust: str = about("Who sees an update: the server, or nobody, the server learning sums only.", "server", TRUSTS)
    quorum: float = about("Share of the asked clients that must be in every sum (trust sum).", 0.8)
    colluders: int = about("Clients who may collude with the server, for its epsilon (trust sum).", 0)
    bits: int | None = about("Bits a coordinate of a masked vector; default: the fewest that suffice.", None)
    reach: float | None = about("Largest coordinate of a sum of updates; default: a public rule finds it.", None)
    sketch: int | None = about("Numbers to which a public map sketches each update (trust sum).", None)
    seed: int = about("Seed of data split and start; with simulate also of keys and draws.", 1)
    seeds: int = about("Number of seeds, trained side by side; more than one only with simulate.", 1)
    simulate: bool = about("Reproducible: keys and draws from the seed; protects nobody, and says so.", False)
    evaluate_every: int = about("Rounds between evaluations.", 1)
    checkpoint_every: int = about("Rounds between checkpoints.", 10)
    keep_messages: bool = about("Write every message to the run's folder.", False)
    keep_keys: bool = about("Keep the run's secret at its end: who has it can strip the noise.", False)
    device: str = about("Where to compute.", "auto", DEVICES)
    byzantine: tuple[int, ...] = about("Byzantine clients, which send garbage (a drill).", ())
    client: tuple[ClientSettings, ...] = about("What some clients do differently.", ())
    # fmt: on

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)

    def own(self, name: str) -> bool:
        """Whether `data` or `model` is the user's own: handed over, made by a function, or read from a file."""
        if name not in ("data", "model"):
            return False
        told = str(getattr(self, name))
        return told.startswith(OWN) or self.refers(name) or (name == "data" and told.endswith(TABLES))

    def refers(self, name: str) -> bool:
        """Whether `data` or `model` is a `module:function`."""
        return REFERENCE.fullmatch(str(getattr(self, name))) is not None

    def fitted(self, names: Sequence[str]) -> Settings:
        """The settings for data whose clients have these names: as many clients, and numbers for the names."""
        if not names:
            unknown = [k for each in self.client for k in each.clients if isinstance(k, str)]
            if unknown:
                raise ValueError(f"client {unknown[0]!r}: the data name no clients; give their numbers")
            return self
        client = tuple(replace(each, clients=_numbered(each.clients, names)) for each in self.client)
        return replace(self, clients=len(names), partition=GIVEN, client=client)

    @property
    def noisy(self) -> bool:
        """Whether the scheme adds noise of a law."""
        return "gaussian" in self.scheme or "laplace" in self.scheme

    @property
    def streams(self) -> bool:
        """Whether clients send streams: their records in fixed slices, one a message in turn."""
        return self.sampling == "cyclic" or self.noise_shape == "matrix"

    @property
    def on_silence(self) -> str:
        """The policy on missing replies: `auto` tops up where a trusted server sees Gaussian noise, else charges."""
        if self.policy != "auto":
            return self.policy
        if self.trust != "server" or self.update == "dp-sgd" or self.streams:
            return "charge"
        schemes = {self.scheme, *(each.scheme or self.scheme for each in self.client)}
        return "top-up" if all("gaussian" in scheme for scheme in schemes) else "charge"

    @property
    def never_heard(self) -> tuple[int, ...]:
        """Clients whose noise cannot be counted on: byzantine ones, unless the server stands in for them."""
        return () if self.on_silence == "top-up" else self.byzantine

    @property
    def clients_per_round(self) -> int:
        """How many clients a round samples."""
        return clients_per_round(self.clients, self.share)

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds of this run."""
        return tuple(range(self.seed, self.seed + self.seeds))


def _is_number(k: Any) -> bool:
    return isinstance(k, int) and not isinstance(k, bool) and k >= 0


def _numbered(clients: tuple[int | str, ...], names: Sequence[str]) -> tuple[int, ...]:
    places = {name: k for k, name in enumerate(names)}
    unknown = [k for k in clients if isinstance(k, str) and k not in places]
    if unknown:
        raise ValueError(f"no client is named {unknown[0]!r}: there are {abbreviated(names)}")
    return tuple(places[k] if isinstance(k, str) else k for k in clients)


def abbreviated(names: Sequence[str], most: int = 8) -> str:
    """Names in one line: the first few, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def clients_per_round(clients: int, share: float) -> int:
    """How many clients a round samples: all, or the nearest whole number to the share, halves upward, at least one."""
    return clients if share >= 1.0 else max(1, math.floor(share * clients + 0.5))
