"""Flower's simulation engine on ports of our own, so that nothing stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopback import CONNECTION, HOST, Federation, Finished, free_port


def simulate(folder: Path, app: Path, clients: int, config: dict[str, Any], seconds: float) -> Finished:
    """An app run in Flower's simulation engine, all of whose processes are started and stopped here."""
    federation = Federation(folder, nodes=0)
    ports = {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(federation.port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }
    federation._env.update(ports)
    home = federation.folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = ":local:"\n'
        f"options.num-supernodes = {clients}\noptions.backend.client-resources.num-cpus = 1\n"
    )
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host", HOST]
    command += ["--port", str(federation.port), "--disable-runtime-dependency-installation"]
    command += ["--control-api-address", f"{HOST}:{ports['FLWR_LOCAL_CONTROL_API_PORT']}"]
    try:
        # Started here, on ports of our own: `flwr run` would leave a daemon behind.
        federation._start("superlink", command)
        federation._wait_healthy()
        return federation.run(app, config, seconds)
    finally:
        federation.close()
