"""Bytes of a whole run by the SuperLink's own counters, plain against both ways small; loopback, known updates.

python tools/flower_traffic.py --nodes 4 --rounds 10 --size 1000000

Written to bench/results/flower_traffic.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from loopback import Federation

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "tests" / "flower" / "app"


def main() -> None:
    """Prints both counters of a plain run and of one with `downlink="quantized"`, start counted, evaluation off."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--sigma", type=float, default=0.01)
    parser.add_argument("--spread", type=float, default=0.03, help="standard deviation of the weights at the start")
    parser.add_argument("--seconds", type=float, default=900.0, help="limit of one run")
    told = parser.parse_args()
    config = {
        "size": told.size,
        "nodes": told.nodes,
        "spread": told.spread,
        "sigma": told.sigma,
        "num-server-rounds": told.rounds,
        "timeout": told.seconds,
    }
    moved, rows = {}, []
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder), nodes=told.nodes) as federation:
        federation.wait_for_nodes(told.nodes)
        for name, more in (("quantized", {"downlink": "quantized"}), ("plain", {"private": False})):
            done = federation.run(APP, {**config, **more}, told.seconds)
            moved[name] = done.inbound_bytes + done.outbound_bytes
            rows.append({"run": name, "bytes_in": done.inbound_bytes, "bytes_out": done.outbound_bytes})
            print(f"{name}: in {done.inbound_bytes}, out {done.outbound_bytes}, {done.seconds:.0f} s", flush=True)
            print("\n".join(line for line in done.output.splitlines() if "cepam: round" in line), flush=True)
    sys.path.append(str(ROOT / "bench"))
    from stamp import save

    save("flower_traffic", {**config, "rows": rows})
    print(f"plain / quantized, both ways: {moved['plain'] / moved['quantized']:.1f}")


if __name__ == "__main__":
    main()
