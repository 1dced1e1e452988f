"""TensorBoard events, written from the metrics as a whole so that a resumed run has each round once.

Needs the `tensorboard` package (`pip install "cepam[tensorboard]"`); without it no event file is written.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cepam._internal.files import write_atomically
from cepam.fl.aggregation.aggregator import Line
from cepam.fl.aggregation.warnings import SIMULATED

SCALARS = (
    "accuracy", "validation_accuracy", "validation_loss", "loss", "train_loss", "snr_db", "epsilon", "replies",
    "bits_per_coordinate", "bits_per_coordinate_down",
)  # fmt: skip


def scalars(line: Line, seeds: int) -> dict[str, float]:
    """Every scalar of a line of metrics by its tag, which names the seed where there are several."""
    tail = f"/seed-{line['seed']}" if seeds > 1 else ""
    made = {name: float(line[name]) for name in SCALARS if line.get(name) is not None}
    marked = f"epsilon ({SIMULATED})"
    return {f"{marked if name == 'epsilon' and line.get('simulated') else name}{tail}": x for name, x in made.items()}


def write_events(path: Path, lines: list[Line]) -> None:
    """Write every scalar of the metrics to one event file, in place of an older one.

    The wall time of an event is its round: metrics carry no clock, so that a resumed run has those of an uninterrupted
    one. Where `tensorboard` is not installed, nothing is written.

    Args:
        path: The event file; TensorBoard reads names that contain `tfevents`.
        lines: The lines of metrics, tagged by seed where there are several.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as missing:
        if missing.name != "tensorboard":
            raise
        return
    seeds = len({line["seed"] for line in lines})
    with TemporaryDirectory() as place:
        with SummaryWriter(place) as writer:
            for line in lines:
                for tag, value in scalars(line, seeds).items():
                    writer.add_scalar(tag, value, line["round"], walltime=float(line["round"]))
        (made,) = Path(place).iterdir()
        write_atomically(path, made.read_bytes())
