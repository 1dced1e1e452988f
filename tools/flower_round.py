"""Two rounds of Flower in one process, with the installed cepam and Flower: `python tools/flower_round.py`.

No SuperLink, no ports: the grid and the nodes are those of the tests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": tempfile.mkdtemp()}
sys.path.append(str(Path(__file__).resolve().parents[1]))

import flwr
import numpy as np
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from tests.flower.fakes import RUN, FakeGrid, Node, adding, start_arrays, vector_of

import cepam
from cepam.flower import Private


def main() -> None:
    """Check what two rounds of two nodes brought, and print it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    change = np.full(400, 0.02)
    for downlink in ("float32", "quantized"):
        grid = FakeGrid([Node(2**62 + k, adding(change)) for k in range(2)])
        strategy = Private(FedAvg(), clip=cepam.L2(1.0), noise=cepam.Gaussian(0.01), downlink=downlink)  # type: ignore[arg-type]
        result = strategy.start(grid, start_arrays(400), num_rounds=2)
        moved = vector_of(result.arrays)
        # Two rounds of 0.02, noise 0.01 each way of two nodes, a step of at most 16 noises: ten deviations.
        assert abs(moved.mean() - 0.04) < 0.02, moved.mean()
        assert result.train_metrics_clientapp[2]["cepam-replies"] == 2
    print(f"flower {flwr.__version__}: two rounds of two nodes, float32 and quantized down")


if __name__ == "__main__":
    main()
