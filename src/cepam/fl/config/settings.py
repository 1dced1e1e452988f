"""The settings of a run: seven tables of typed values, which Python, a TOML file and `--set` fill in alike."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from cepam._internal.quorum import quorum_count
from cepam.fl.config.checks import CHECKS, one_of, positive
from cepam.fl.data.catalog import NAMES as DATA
from cepam.fl.data.dataset import TABLES as TABLE_FILES
from cepam.fl.data.partition import GIVEN
from cepam.fl.data.partition import NAMES as PARTITIONS
from cepam.fl.models.model import ACTIVATIONS
from cepam.fl.models.model import NAMES as MODELS
from cepam.fl.optim import OPTIMIZERS, SCHEDULES
from cepam.lattices.lattice import NAMED
from cepam.privacy.reports.guarantee import FOLLOWED, rate_for_target

RENAMED = {
    "data": "data.name", "target": "data.target_column", "client_column": "data.client_column",
    "folder": "data.folder", "pixels": "data.pixels", "validation": "data.validation_records",
    "partition": "data.partition", "alpha": "data.concentration", "labels_each": "data.shards_per_client",
    "model": "model.name", "activation": "model.activation", "personal": "model.personal_layers",
    "clients": "clients.count", "cohort": "clients.sampling", "share": "clients.sampling_rate",
    "cohort_cap": "clients.max_cohort", "participations": "clients.max_participations",
    "dropout": "clients.dropout_rate", "policy": "clients.dropout_handling", "byzantine": "clients.byzantine",
    "client": "clients.overrides", "update": "training.update", "rounds": "training.rounds",
    "tau": "training.local_steps", "batch": "training.batch_size", "epochs": "training.local_epochs",
    "sampling": "training.record_sampling", "expected_batch": "training.expected_batch_size",
    "slices": "training.slices", "rate": "training.server_learning_rate", "server": "training.server_optimizer",
    "momentum": "training.server_momentum", "schedule": "training.schedule",
    "local_rate": "training.local_learning_rate", "local_schedule": "training.local_schedule",
    "local_momentum": "training.local_momentum", "average": "training.weight_averaging",
    "convexity": "training.convexity", "smoothness": "training.smoothness", "epsilon": "privacy.epsilon",
    "delta": "privacy.delta", "noise": "privacy.noise_scale", "unit": "privacy.unit", "adjacency": "privacy.adjacency",
    "clip": "privacy.clipping_norm", "clip_norm": "privacy.norm_type", "clip_scope": "privacy.clip_scope",
    "clip_quantile": "privacy.clip_quantile", "step_noise": "privacy.step_noise_multiplier",
    "noise_shape": "privacy.noise_correlation", "carry": "privacy.decay", "matrix": "privacy.matrix",
    "trust": "privacy.trust", "quorum": "privacy.quorum", "colluders": "privacy.colluders",
    "scheme": "compression.scheme", "lattice": "compression.lattice", "coder": "compression.coder",
    "step": "compression.sdq_step", "downlink": "compression.downlink", "bucket": "compression.padding",
    "bits": "compression.masked_bits", "reach": "compression.quantization_range", "sketch": "compression.sketch",
    "seed": "run.seed", "seeds": "run.seeds", "simulate": "run.simulate", "evaluate_every": "run.evaluate_every",
    "checkpoint_every": "run.checkpoint_every", "keep_messages": "run.keep_messages", "keep_keys": "run.keep_keys",
    "device": "run.device",
    "clients.overrides.noise": "clients.overrides.noise_scale",
    "clients.overrides.clip": "clients.overrides.clipping_norm",
}  # fmt: skip
"""Names of version 0.1, for error messages: none of them is accepted."""
MOST_NAMED = 4


def flattened(values: Mapping[str, Any], tables: Collection[str], where: str) -> dict[str, Any]:
    """The values by dotted name, from nested tables, from dotted names, or from both.

    Raises:
        ValueError: A setting is given twice, or a table has another value than a table.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = {f"{name}.{each}": v for each, v in value.items()} if _is_table(name, value, tables) else {name: value}
        for each, v in inner.items():
            if each in flat:
                raise ValueError(f"{each} is given twice in {where}")
            flat[each] = v
    return flat


def _is_table(name: str, value: Any, tables: Collection[str]) -> bool:
    return name in tables and isinstance(value, Mapping)


def check_names(given: Collection[str], known: Collection[str], where: str) -> None:
    """Refuse names that no setting has; the sentence says what an old name is called now, or which one is near."""
    unknown = sorted(set(given) - set(known))
    if not unknown:
        return
    if renamed := [f"{name} is now {RENAMED[name]}" for name in unknown if name in RENAMED]:
        more = f", and {len(renamed) - MOST_NAMED} more" if len(renamed) > MOST_NAMED else ""
        raise ValueError(f"{where} has names of version 0.1: {', '.join(renamed[:MOST_NAMED])}{more}")
    near = get_close_matches(unknown[0], known, 1)
    hint = f"; did you mean {near[0]}?" if near else "; `cepam train --help-all` lists them all"
    raise ValueError(f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} in {where}{hint}")


def fitting(kind: Any, value: Any, name: str) -> Any:
    """The value as its setting wants it: whole numbers pass for floats, lists become tuples.

    Raises:
        ValueError: The value is of another type.
    """
    plain = tuple(k for k in get_args(kind) if k is not type(None)) or (kind,)
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return tuple(value)
    wanted = plain[0] if plain[0] in (int, float, str, bool) else None
    if wanted is not None and not isinstance(value, wanted) and not (value is None and kind is not plain[0]):
        raise ValueError(f"{name} must be {WORDS[wanted]}, got {value!r}")
    return value


WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def parsed(kind: Any, text: str, name: str) -> Any:
    """The value that a text of the command line stands for; `none` is None where the setting may be unset.

    Raises:
        ValueError: The text is no value of the setting's type.
    """
    many = get_origin(kind) is tuple
    if text.lower() == "none" and (many or type(None) in get_args(kind)):
        return () if many else None
    wanted = kind if many else next((k for k in get_args(kind) if k is not type(None)), kind)
    try:
        if many:
            return tuple(client_numbers(text))
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if wanted in (int, float):
            return wanted(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {WORDS.get(wanted, 'client numbers')}, got {text!r}") from None
    return text


def client_numbers(text: str) -> list[int | str]:
    """The clients of "3", "0-9", "0-4,7", or of names."""
    found: list[int | str] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            found.extend(range(int(first), int(last if dash else first) + 1))
        elif piece.strip() and not piece.strip()[0].isdigit() and not piece.strip().startswith("-"):
            found.append(piece.strip())
        else:
            raise ValueError(f"clients must be numbers, ranges such as 0-9, or names, got {piece!r}")
    return found


OWN = "own: "
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A `module:function` that makes data or a model."""
UPDATES = ("gradient", "difference", "examples", "dp-sgd")
SCHEMES = (
    "fl", "fl+sdq", "fl+gaussian", "fl+laplace", "fl+gaussian+sdq", "fl+laplace+sdq", "cepam-gaussian", "cepam-laplace",
)  # fmt: skip
LATTICES = tuple(NAMED)
CODERS = ("auto", "layered", "paper")
NORM_TYPES = ("l2", "l1", "none")
CLIP_SCOPES = ("vector", "tensor")
RECORD_SAMPLINGS = ("replacement", "without", "poisson", "all", "cyclic")
NOISE_CORRELATIONS = ("independent", "matrix")
DROPOUT_HANDLINGS = ("auto", "compensate", "charge", "wait")
LOCAL_SCHEDULES = ("same", "constant")
UNITS = ("record", "client")
CLIENT_SAMPLINGS = ("fixed", "poisson")
ADJACENCIES = ("replace", "add-remove")
PIXELS = ("unit", "centred")
DEVICES = ("auto", "cpu", "cpu-torch", "cuda")
DOWNLINKS = ("float32", "quantized")
TRUSTS = ("server", "secure-aggregation")


def setting(text: str, default: Any, choices: tuple[str, ...] = ()) -> Any:
    """A field with its one line of help, for `--help-all`, for config.toml and for the reference page."""
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class ClientOverride:
    """What some clients do differently: any of scheme, noise scale, target, clipping norm, weight and lattice.

    Args:
        clients: Their numbers, or their names where the data name clients.
        scheme: Their `compression.scheme`.
        noise_scale: Their `privacy.noise_scale`.
        epsilon: Their `privacy.epsilon`, instead of a noise scale.
        delta: Their `privacy.delta`.
        clipping_norm: Their `privacy.clipping_norm`.
        weight: Their weight in the average; by default in proportion to their records.
        lattice: Their `compression.lattice`.
    """

    clients: tuple[int | str, ...]
    scheme: str | None = None
    noise_scale: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    clipping_norm: float | None = None
    weight: float | None = None
    lattice: str | None = None

    def __post_init__(self) -> None:
        if not self.clients or any(not isinstance(k, str) and not _is_number(k) for k in self.clients):
            raise ValueError(f"clients.overrides: clients must list client numbers or names, got {self.clients!r}")
        one_of("clients.overrides: scheme", self.scheme, (*SCHEMES, None))
        one_of("clients.overrides: lattice", self.lattice, (*LATTICES, None))
        for name in ("noise_scale", "epsilon", "delta", "clipping_norm", "weight"):
            positive(f"clients.overrides: {name}", getattr(self, name), optional=True)
        if self.noise_scale is not None and self.epsilon is not None:
            raise ValueError("clients.overrides: give either noise_scale or a target epsilon, not both")


# fmt: off
@dataclass(frozen=True)
class DataSettings:
    """The table `[data]`: the records, and how clients hold them.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    name: str = setting("Data set; or module:function that makes one, or a CSV or Parquet file.", "mnist", DATA)
    target_column: str | None = setting("Column of a CSV or Parquet file to predict.", None)
    client_column: str | None = setting("Column of a CSV or Parquet file that names the client of a row.", None)
    folder: str | None = setting("Folder with the data set's files, instead of the cache and the network.", None)
    pixels: str = setting("Range of pixels: unit is [0, 1], centred is [-1, 1].", "centred", PIXELS)
    validation_records: int = setting("Number of training records held out for validation.", 0)
    partition: str = setting("How records are split among clients.", "iid", (*PARTITIONS, GIVEN))
    concentration: float = setting("Dirichlet concentration of a dirichlet partition, or spread of unequal sizes.", 0.5)
    shards_per_client: int = setting("Label shards per client (partition label).", 2)


@dataclass(frozen=True)
class ModelSettings:
    """The table `[model]`: what is trained.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    name: str = setting("Model; or module:function that makes one.", "cnn", MODELS)
    activation: str = setting("Activation between layers.", "relu", tuple(ACTIVATIONS))
    personal_layers: str | None = setting("Layers that stay on each client, by name, or last; never sent.", None)


@dataclass(frozen=True)
class ClientsSettings:
    """The table `[clients]`: how many there are, who is sampled, who fails, and who differs.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    count: int = setting("Number of clients.", 30)
    sampling: str = setting("Client sampling: a fixed number per round, or Poisson (unit client).", "fixed",
                            CLIENT_SAMPLINGS)
    sampling_rate: float = setting("Client sampling rate: probability that a client is sampled in a round, "
                                   "in (0, 1].", 1.0)
    max_cohort: int = setting("Largest cohort of Poisson sampling, in clients; 0: so large that more never occur.", 0)
    max_participations: int | None = setting("Most rounds in which one client is sampled (unit client).", None)
    dropout_rate: float = setting("Probability that a sampled client does not reply, in [0, 1).", 0.0)
    dropout_handling: str = setting("The server adds the missing noise (compensate), charges what was added, or waits; "
                                    "auto: compensate where it can, else charge.", "auto", DROPOUT_HANDLINGS)
    byzantine: tuple[int, ...] = setting("Numbers of the clients that send garbage, to test the server.", ())
    overrides: tuple[ClientOverride, ...] = setting("Clients with settings of their own.", ())


@dataclass(frozen=True)
class TrainingSettings:
    """The table `[training]`: local work, the server step, and their schedules.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    update: str = setting("What a client sends: a gradient, a model difference, a sum of clipped per-example gradients "
                          "(examples), or the result of local DP-SGD.", "gradient", UPDATES)
    rounds: int = setting("Number of rounds.", 80)
    local_steps: int = setting("Local steps per round; with update gradient the last step's gradient is sent.", 15)
    batch_size: int = setting("Minibatch size: records per local step.", 1)
    local_epochs: int = setting("Local epochs per round (update dp-sgd).", 1)
    record_sampling: str = setting("How a client samples its records.", "replacement", RECORD_SAMPLINGS)
    expected_batch_size: float = setting("Expected records per round over all clients (update examples).", 960.0)
    slices: int = setting("Fixed slices of each client's records, used in turn, one per round (record_sampling cyclic, "
                          "or poisson with noise_correlation matrix).", 30)
    server_learning_rate: float = setting("Learning rate of the server step.", 0.1)
    server_optimizer: str = setting("Optimizer of the server step.", "sgd", OPTIMIZERS)
    server_momentum: float = setting("Momentum of the server optimizer, in [0, 1).", 0.9)
    schedule: str = setting("Learning-rate schedule.", "constant", SCHEDULES)
    local_learning_rate: float | None = setting("Learning rate of local steps; default: server_learning_rate.", None)
    local_schedule: str = setting("Schedule of local steps: same as the server's, or constant.", "same",
                                  LOCAL_SCHEDULES)
    local_momentum: float = setting("Momentum of local steps, from zero in every round, in [0, 1).", 0.0)
    weight_averaging: float = setting("Decay of the running average of weights that is reported, in [0, 1); 0: the "
                                      "last weights.", 0.0)
    convexity: float = setting("Strong convexity constant C of schedule theorem.", 0.0)
    smoothness: float = setting("Smoothness constant L of schedule theorem.", 0.0)


@dataclass(frozen=True)
class PrivacySettings:
    """The table `[privacy]`: the guarantee, the noise, the clipping, and whom the clients trust.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    epsilon: float | None = setting("Target epsilon of the whole run, instead of a noise scale.", None)
    delta: float = setting("delta of the guarantee, in (0, 1).", 1e-5)
    noise_scale: float | None = setting("Noise scale per coordinate and client, in the unit of the update: sigma of "
                                        "Gaussian or b of Laplace noise.",
                                        None)
    unit: str = setting("What the guarantee protects: one record, or all records of one client.", "record", UNITS)
    adjacency: str = setting("Neighbouring data sets: replace one unit, or add or remove one.", "replace", ADJACENCIES)
    clipping_norm: float = setting("Clipping norm: the bound on an update, or on an example's gradient.", 1.0)
    norm_type: str = setting("Norm that is clipped.", "l2", NORM_TYPES)
    clip_scope: str = setting("Clip the whole vector, or each tensor separately.", "vector", CLIP_SCOPES)
    clip_quantile: float | None = setting("Adapt the clipping norm to this quantile of update norms, in (0, 1) "
                                          "(unit client).", None)
    step_noise_multiplier: float | None = setting("Noise multiplier of a local step (update dp-sgd), instead of "
                                                  "epsilon.", None)
    noise_correlation: str = setting("Noise independent across rounds, or correlated by a matrix mechanism (DP-FTRL).",
                                     "independent", NOISE_CORRELATIONS)
    decay: float | None = setting("Fraction of a round's noise that the next round cancels, in [0, 1); default: the "
                                  "best for the run.", None)
    matrix: str | None = setting("File (.npy) with your own matrix for correlated noise: a column or a square.", None)
    trust: str = setting("Who sees single updates: the server, or with secure-aggregation nobody.", "server", TRUSTS)
    quorum: float = setting("Fewest clients in a sum (secure aggregation): a fraction of the round's clients, in "
                            "(0, 1], or a number of clients, from 2.", 0.8)
    colluders: int = setting("Number of clients who share all they know with the adversary, here the server (secure "
                             "aggregation).", 0)


@dataclass(frozen=True)
class CompressionSettings:
    """The table `[compression]`: how updates and models become bytes.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    scheme: str = setting("Compression and noise of an update.", "cepam-gaussian", SCHEMES)
    lattice: str = setting("Lattice of a cepam scheme.", "Z1", LATTICES)
    coder: str = setting("Coder; auto has far fewer bytes than layered where noise drowns updates.", "auto", CODERS)
    sdq_step: float = setting("Quantization step of the sdq schemes.", 1e-3)
    downlink: str = setting("Model broadcast: float32 weights, or quantized differences.", "float32", DOWNLINKS)
    downlink_step_factor: float = setting("Step of a quantized downlink, in learning rates times noise of the average. "
                                          "Larger: fewer bits, coarser models.", 64.0)
    downlink_step_exponent: float = setting("Power of the learning-rate schedule that the step follows, in [0, 1]; 1: "
                                            "it halves with the rate, 0: it stays.", 1.0)
    downlink_hysteresis: float = setting("Steps by which a weight must be off before a quantized downlink moves it, in "
                                         "[0.5, 2]. Larger: fewer bits; 0.5: nearest point.", 0.5)
    padding: int | None = setting("Pad messages to a multiple of this many bytes, so that lengths reveal less.", None)
    masked_bits: int | None = setting("Bits per coordinate of a masked vector, 1 to 32; default: the fewest that "
                                      "suffice (secure aggregation).", None)
    quantization_range: float | None = setting("Largest coordinate of a sum of updates; default: found by a public "
                                               "rule (secure aggregation).", None)
    sketch: int | None = setting("Dimension of a public sketch of each update (secure aggregation).", None)


@dataclass(frozen=True)
class RunSettings:
    """The table `[run]`: seeds, evaluation, and what is kept.

    `cepam train --help-all` lists the fields with their units and defaults.
    """

    seed: int = setting("Seed of the data split and the initial weights; with simulate also of keys and draws.", 1)
    seeds: int = setting("Number of seeds, trained side by side; more than one needs simulate.", 1)
    simulate: bool = setting("Reproducible simulation: keys and draws come from the seed. Protects nobody.", False)
    evaluate_every: int = setting("Rounds between evaluations.", 1)
    checkpoint_every: int = setting("Rounds between checkpoints.", 10)
    keep_messages: bool = setting("Write every message to the run's folder.", False)
    keep_keys: bool = setting("Keep the run's secret at its end. Whoever has it can remove the noise.", False)
    device: str = setting("Where to compute.", "auto", DEVICES)
# fmt: on


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run. With `run.simulate`, equal settings give equal results on the same machine.

    `data.name` and `model.name` are names, `module:function` for what makes them, or `own: name` for what was handed
    over in Python; `data.name` may be a CSV or Parquet file.

    Args:
        data: The records, and how clients hold them.
        model: What is trained.
        clients: How many there are, who is sampled, who fails, and who differs.
        training: Local work, the server's step, and their schedules.
        privacy: The guarantee, the noise, the clipping, and whom the clients trust.
        compression: How updates and models become bytes.
        run: Seeds, evaluation, and what is kept.

    Raises:
        ValueError: A value is out of range, or two contradict each other.

    Example:
        ```python
        settings = fl.Settings(
            privacy=fl.PrivacySettings(noise_scale=0.01),
            training=fl.TrainingSettings(rounds=20),
        )
        settings = settings.updated({"training.rounds": 5})
        ```
    """

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    clients: ClientsSettings = field(default_factory=ClientsSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    run: RunSettings = field(default_factory=RunSettings)

    _follows: ClassVar[tuple[str, str, str] | None] = None
    """Of an object: the preset whose rate follows the target, and that preset's data and model."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "the settings") -> Settings:
        """Make settings from plain values; what is not given has its default.

        Args:
            values: By dotted name (`{"privacy.epsilon": 2}`) or as nested tables (`{"privacy": {"epsilon": 2}}`).
            where: What an error calls the source of the values.

        Returns:
            The settings.

        Raises:
            ValueError: A name is unknown, or a value is out of its range; the sentence names both.
        """
        given = checked(values, where)
        made: dict[str, Any] = {}
        for table, kind in TABLES.items():
            made[table] = kind(**{
                name.partition(".")[2]: value for name, value in given.items() if name.startswith(f"{table}.")
            })  # fmt: skip
        return cls(**made)

    def updated(self, changes: Mapping[str, Any]) -> Settings:
        """Give a copy with some settings changed.

        A noise scale takes the place of a target epsilon, and a target that of a noise scale, unless both are given or
        `training.update` is dp-sgd, which may have both. The server learning rate of preset `private` follows a target,
        unless a rate or a noise scale was given (`followed_rate`).

        Args:
            changes: By dotted name or as nested tables, as for `of`.

        Returns:
            The changed settings.

        Raises:
            ValueError: A name is unknown, or a value is out of its range; the sentence names both.
        """
        given = checked(changes, "the changes")
        both = given.get("training.update", self.training.update) == "dp-sgd"
        made = type(self).of(self.values() | given if both else overlaid(self.values(), given))
        return made if self._follows is None else made.following(*self._follows, given)

    def following(self, preset: str, data: str, model: str, given: Collection[str] = ()) -> Settings:
        """Give a copy whose server learning rate follows the target epsilon, and goes on to in `updated`.

        Where a noise scale is set, the rate is the preset's own.

        Args:
            preset: The preset whose rule is taken.
            data: Its data; for others the rate stays at the preset's own or below.
            model: Its model; likewise.
            given: Dotted names of what the user set: a rate among them stays, from now on.

        Returns:
            The copy; the settings themselves where the preset has no rule or the rate is given.
        """
        if preset not in FOLLOWED or RATE in given:
            return self
        target = self.privacy.epsilon if self.privacy.noise_scale is None else None
        rate = rate_for_target(preset, target, own=(self.data.name, self.model.name) != (data, model))
        taken = FOLLOWED[preset][0] if rate is None else rate
        made = replace(self, training=replace(self.training, server_learning_rate=taken))
        vars(made)["_follows"] = preset, data, model
        return made

    @property
    def followed_rate(self) -> str:
        """A sentence on the server learning rate that a target took; empty where none but the preset's own was."""
        private = self.privacy
        if self._follows is None or private.noise_scale or private.epsilon in (None, FOLLOWED[self._follows[0]][1]):
            return ""
        return (
            f"server learning rate {self.training.server_learning_rate:.4g} for epsilon {private.epsilon:g}; "
            f"{RATE} sets another"
        )

    def values(self) -> dict[str, Any]:
        """Every setting by its dotted name, in the order of the tables.

        Returns:
            Values by dotted name, as `of` takes them.
        """
        return {name: getattr(getattr(self, table), each.name) for name, table, each in described()}

    def own(self, table: str) -> bool:
        """Whether the data or the model is the user's own: handed over, made by a function, or read from a file.

        Args:
            table: `data` or `model`.

        Returns:
            Whether it is no built-in one.
        """
        name = str(getattr(self, table).name)
        return name.startswith(OWN) or self.refers(table) or (table == "data" and name.endswith(TABLE_FILES))

    def refers(self, table: str) -> bool:
        """Whether the data or the model is a `module:function`.

        Args:
            table: `data` or `model`.

        Returns:
            Whether its name is a reference to a function.
        """
        return REFERENCE.fullmatch(str(getattr(self, table).name)) is not None

    def fitted(self, names: Sequence[str]) -> Settings:
        """The settings for data whose clients have these names: as many clients, and numbers for the names.

        Args:
            names: Names of the data's clients; empty where they have none.

        Returns:
            New settings; these where the data name no clients.

        Raises:
            ValueError: An override names a client that the data do not have.
        """
        overrides = self.clients.overrides
        if not names:
            unknown = [k for each in overrides for k in each.clients if isinstance(k, str)]
            if unknown:
                raise ValueError(f"client {unknown[0]!r}: the data name no clients; give their numbers")
            return self
        numbered = tuple(replace(each, clients=_numbered(each.clients, names)) for each in overrides)
        made = replace(
            self,
            data=replace(self.data, partition=GIVEN),
            clients=replace(self.clients, count=len(names), overrides=numbered),
        )
        vars(made)["_follows"] = self._follows
        return made

    @property
    def noisy(self) -> bool:
        """Whether the scheme adds noise."""
        return "gaussian" in self.compression.scheme or "laplace" in self.compression.scheme

    @property
    def sliced(self) -> bool:
        """Whether clients use their records in fixed slices, one per round in turn."""
        return self.training.record_sampling == "cyclic" or self.privacy.noise_correlation == "matrix"

    @property
    def dropout_handling(self) -> str:
        """How missing replies are handled: `auto` compensates where a trusted server sees Gaussian noise."""
        if self.clients.dropout_handling != "auto":
            return self.clients.dropout_handling
        if self.privacy.trust != "server" or self.training.update == "dp-sgd" or self.sliced:
            return "charge"
        scheme = self.compression.scheme
        schemes = {scheme, *(each.scheme or scheme for each in self.clients.overrides)}
        return "compensate" if all("gaussian" in each for each in schemes) else "charge"

    @property
    def uncounted_clients(self) -> tuple[int, ...]:
        """Clients whose noise cannot be counted on: byzantine ones, unless the server compensates for them."""
        return () if self.dropout_handling == "compensate" else self.clients.byzantine

    @property
    def clients_per_round(self) -> int:
        """How many clients a round samples."""
        return clients_per_round(self.clients.count, self.clients.sampling_rate)

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds of this run."""
        return tuple(range(self.run.seed, self.run.seed + self.run.seeds))


TABLES: dict[str, Any] = {
    "data": DataSettings,
    "model": ModelSettings,
    "clients": ClientsSettings,
    "training": TrainingSettings,
    "privacy": PrivacySettings,
    "compression": CompressionSettings,
    "run": RunSettings,
}
OVERRIDES = "clients.overrides"
RATE = "training.server_learning_rate"
EXCLUSIVE = ("privacy.noise_scale", "privacy.epsilon")
"""Of these two a run states one: the other follows from it."""


def described() -> Iterator[tuple[str, str, Field[Any]]]:
    """Every setting: its dotted name, its table and its field, whose metadata hold `help` and `choices`."""
    for table, kind in TABLES.items():
        for each in fields(kind):
            yield f"{table}.{each.name}", table, each


def types() -> dict[str, Any]:
    """The type of every setting, by its dotted name."""
    return {f"{table}.{name}": kind for table, of in TABLES.items() for name, kind in get_type_hints(of).items()}


def checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values by dotted name, each of the type of its setting.

    Raises:
        ValueError: A name is unknown (for an old one, the new name is given), or a value is of another type.
    """
    known = types()
    given = flattened(values, TABLES, where)
    check_names(given, known, where)
    return {
        name: _overrides(value, where) if name == OVERRIDES else fitting(known[name], value, name)
        for name, value in given.items()
    }


def _overrides(listed: Any, where: str) -> tuple[ClientOverride, ...]:
    if isinstance(listed, Mapping | str) or not isinstance(listed, Sequence):
        raise ValueError(f"{OVERRIDES} must be a list of tables ([[{OVERRIDES}]]), got {listed!r}")
    known, made = get_type_hints(ClientOverride), []
    for table in listed:
        if isinstance(table, ClientOverride):
            made.append(table)
            continue
        if not isinstance(table, Mapping):
            raise ValueError(f"{OVERRIDES} must be a list of tables ([[{OVERRIDES}]]), got {table!r}")
        own = {"clients": [], **table}
        check_names({f"{OVERRIDES}.{name}": 0 for name in own}, {f"{OVERRIDES}.{name}": 0 for name in known}, where)
        if isinstance(own["clients"], str | int):
            own["clients"] = client_numbers(str(own["clients"]))
        made.append(
            ClientOverride(**{name: fitting(known[name], v, f"{OVERRIDES}: {name}") for name, v in own.items()})
        )
    return tuple(made)


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others over them, by dotted name: a noise scale and a target epsilon replace each other."""
    merged = dict(below)
    for one, other in (EXCLUSIVE, EXCLUSIVE[::-1]):
        if above.get(one) is not None and other not in above:
            merged.pop(other, None)
    return merged | dict(above)


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


def clients_per_round(clients: int, sampling_rate: float) -> int:
    """How many clients a round samples: the nearest whole number to the rate's, halves upward, at least one."""
    return clients if sampling_rate >= 1.0 else max(1, math.floor(sampling_rate * clients + 0.5))


COMPLETE = 100
"""Up to so many clients everybody shares masks with everybody."""
CORRUPT = 0.1
"""The share of colluding clients that a sparse graph stands at least."""


@dataclass(frozen=True)
class SecAggGraph:
    """How many clients a round has, how many must be in every sum, and who shares masks with whom (degree 0: all)."""

    clients: int
    quorum: int
    colluders: int
    degree: int = 0
    threshold: int = 0

    @classmethod
    def of(cls, settings: Settings) -> SecAggGraph:
        """The graph of a run's rounds."""
        clients = settings.clients_per_round
        quorum = quorum_count(settings.privacy.quorum, clients, "privacy.quorum")
        if clients <= COMPLETE:
            return cls(clients, quorum, settings.privacy.colluders)
        corrupt = max(CORRUPT, settings.privacy.colluders / clients)
        from cepam.secure_aggregation import (
            sparse_graph,  # whose room needs `cryptography`: a run without sums does without
        )

        degree, threshold = sparse_graph(clients, corrupt, 1.0 - quorum / clients)
        return cls(clients, quorum, settings.privacy.colluders, degree, threshold)

    @property
    def honest(self) -> int:
        """The honest clients in every sum that a server can open: one that lies on the complete graph, else a true one.

        Guarantee: docs/proofs/secure-aggregation.md, Theorem 3.
        """
        return self.quorum - self.colluders if self.degree else 2 * self.quorum - self.clients - self.colluders


def surely_in(settings: Settings) -> int:
    """How many clients' noise is in every round that is published: what a target epsilon can count on."""
    if settings.privacy.trust == "secure-aggregation" and settings.clients.dropout_rate:
        return SecAggGraph.of(settings).quorum
    return settings.clients_per_round
