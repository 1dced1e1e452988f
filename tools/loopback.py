"""A Flower federation on loopback: a SuperLink and SuperNodes as processes, all of them stopped on the way out.

Insecure, or with TLS and node authentication. Nothing is looked up on the internet: telemetry and update checks are
off, and apps run in the environment that starts them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from loopback_keys import make_certificates, make_key
from process_groups import end

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).resolve().parent.parent / "src"
HOST = "127.0.0.1"
CONNECTION = "loopback"
START_SECONDS = 60.0


class FederationFailed(RuntimeError):
    """A process of the federation did not do what it should; the message ends with its log's last lines."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def tail(path: Path, lines: int = 30) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


@dataclass
class Finished:
    """A run that ended: its id, what it printed, and the traffic that the SuperLink counted."""

    run_id: int
    output: str
    status: str
    inbound_bytes: int
    outbound_bytes: int
    seconds: float


@dataclass
class Federation:
    """A SuperLink and `nodes` SuperNodes; use it in a `with` statement.

    `secure` switches TLS and node authentication on; every SuperNode is then registered under its own key, and its
    configuration names the key file, so that key agreements are signed with it. In `node_config`, `{node}` is the
    SuperNode's number.
    """

    folder: Path
    nodes: int
    secure: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    node_config: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        self._env = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{SOURCE}".lstrip(":"),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            **self.environment,
        }

    def __enter__(self) -> Federation:
        try:
            self._start_superlink()
            for k in range(self.nodes):
                if self.secure:
                    self._register(k)
                self.start_node(k)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process that was started here."""
        self._end(list(self._running))
        for log in self._logs:
            log.close()
        self._logs.clear()

    @property
    def server_key(self) -> Path:
        """The key with which a ServerApp may sign its offers (made where the federation is secure)."""
        return self.folder / "serverapp.key"

    def node_log(self, k: int) -> str:
        """What SuperNode k has printed."""
        return (self.folder / f"node{k}.log").read_text(errors="replace")

    def start_node(self, k: int) -> None:
        """Start SuperNode k (again)."""
        config: dict[str, str | int] = {"partition-id": k, "num-partitions": self.nodes}
        config |= {name: value.replace("{node}", str(k)) for name, value in self.node_config.items()}
        if self.secure:
            config["cepam-identity"] = str(self.folder / f"node{k}.key")
            config["cepam-server"] = str(self.folder / "serverapp.pub")
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--host", HOST]
        command += ["--port", str(free_port()), "--node-config", text]
        if self.secure:
            command += ["--root-certificates", str(self.folder / "ca.crt")]
            command += ["--auth-supernode-private-key", str(self.folder / f"node{k}.key")]
        else:
            command += ["--insecure"]
        self._start(f"node{k}", command)

    def signal_node(self, k: int, what: signal.Signals) -> None:
        """Send the signal to SuperNode k and the app processes that it started."""
        os.killpg(self._running[f"node{k}"].pid, what)

    def stop_node(self, k: int) -> None:
        """Stop SuperNode k."""
        self._end([f"node{k}"])

    def node_is_running(self, k: int) -> bool:
        """Whether SuperNode k's process lives."""
        return self._running[f"node{k}"].poll() is None

    def wait_for_nodes(self, count: int, seconds: float = START_SECONDS) -> None:
        """Wait until that many SuperNodes have said that they are connected."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if sum("SuperNode ID" in self.node_log(k) for k in range(self.nodes)) >= count:
                return
            time.sleep(0.2)
        raise FederationFailed(f"{count} SuperNodes did not connect in {seconds:.0f} s\n{self._all_tails()}")

    def run(self, app: Path, config: dict[str, Any], seconds: float) -> Finished:
        """The run of an app, from submission to its end; `FederationFailed` if it fails or takes longer."""
        submitted = self.submit(app, config)
        return submitted.wait(seconds)

    def submit(self, app: Path, config: dict[str, Any]) -> Submitted:
        """A run that is under way."""
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        number = sum(name.startswith("run") for name in os.listdir(self.folder))
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        if text:
            command += ["-c", text]
        name = f"run{number}"
        self._start(name, command)
        return Submitted(self, name, time.monotonic())

    def traffic(self, run_id: int) -> tuple[str, int, int]:
        """The run's status, and the bytes from and to SuperNodes as the SuperLink counted them."""
        said = self.flwr("ls", CONNECTION, "--run-id", str(run_id), "--format", "json")
        run = json.loads(said)["runs"][0]
        moved = run["network-traffic"]
        return str(run["status"]), int(moved["inbound-bytes"]), int(moved["outbound-bytes"])

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints."""
        done = subprocess.run(
            ["flwr", *arguments], env=self._env, cwd=self.folder, capture_output=True, text=True, timeout=90
        )
        if done.returncode:
            raise FederationFailed(f"flwr {shlex.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _start_superlink(self) -> None:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.secure:
            make_certificates(self.folder)
            make_key(self.server_key, self.folder / "serverapp.pub")
            for what in ("ca-certfile", "certfile", "keyfile"):
                command += [
                    f"--ssl-{what}",
                    str(
                        self.folder / {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}[what]
                    ),
                ]
            command += ["--enable-supernode-auth"]
            trust = f'root-certificates = "{self.folder / "ca.crt"}"'
        else:
            command += ["--insecure"]
            trust = "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\n{trust}\n'
        )
        self._start("superlink", command)
        self._wait_healthy()

    def _wait_healthy(self) -> None:
        scheme = "https" if self.secure else "http"
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt")) if self.secure else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=trust)] if trust else [])
        )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._running["superlink"].poll() is None:
            try:
                with opener.open(f"{scheme}://{HOST}:{self.port}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise FederationFailed(f"the SuperLink did not start\n{tail(self.folder / 'superlink.log')}")

    def _register(self, k: int) -> None:
        make_key(self.folder / f"node{k}.key", self.folder / f"node{k}.pub")
        self.flwr("supernode", "register", str(self.folder / f"node{k}.pub"), CONNECTION)

    def _start(self, name: str, command: list[str]) -> None:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - closed in `close`
        self._logs.append(log)
        self._running[name] = subprocess.Popen(
            command, env=self._env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _end(self, names: list[str]) -> None:
        end([self._running.pop(name) for name in names])

    def _all_tails(self) -> str:
        return "\n".join(f"--- {path.name}\n{tail(path)}" for path in sorted(self.folder.glob("*.log")))


@dataclass
class Submitted:
    """A run under way in a federation."""

    federation: Federation
    name: str
    started: float

    @property
    def output(self) -> str:
        """What the run has printed so far."""
        return (self.federation.folder / f"{self.name}.log").read_text(errors="replace")

    def wait_for(self, text: str, seconds: float) -> None:
        """Wait until the run has printed the text."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if text in self.output:
                return
            time.sleep(0.1)
        raise FederationFailed(f"{text!r} was not printed in {seconds:.0f} s\n{self.federation._all_tails()}")

    def wait(self, seconds: float) -> Finished:
        """The finished run; `FederationFailed` if it fails or takes longer."""
        process = self.federation._running[self.name]
        try:
            process.wait(timeout=max(0.1, self.started + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise FederationFailed(f"the run took over {seconds:.0f} s\n{self.federation._all_tails()}") from None
        took = time.monotonic() - self.started
        found = re.search(r"run (?:ID:? ?)?(\d{6,})", self.output, re.IGNORECASE)
        if found is None:
            raise FederationFailed(f"the run was not accepted\n{self.output}")
        status, inbound, outbound = self.federation.traffic(int(found[1]))
        if "completed" not in status:
            raise FederationFailed(f"the run ended as {status}\n{self.federation._all_tails()}")
        return Finished(int(found[1]), self.output, status, inbound, outbound, took)
