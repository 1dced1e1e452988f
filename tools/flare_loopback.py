"""A provisioned NVIDIA FLARE deployment on loopback: a server and sites as processes, with certificates.

`nvflare provision` writes the startup kits; everything that is started here is stopped on the way out.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from process_groups import end

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).resolve().parent.parent / "src"
ADMIN = "admin@example.org"
NOT_STARTED = "FINISHED:FAILED_TO_RUN"
PROJECT = """
api_version: 3
name: loopback
description: sites on loopback
participants:
  - {{name: localhost, type: server, org: example, fed_learn_port: {port}, admin_port: {admin_port}}}
{sites}
  - {{name: {admin}, type: admin, org: example, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


class DeploymentFailed(RuntimeError):
    """The deployment did not do what it should; the message ends with the logs' last lines."""


@dataclass(frozen=True)
class Ended:
    """A job that ended: its id, FLARE's word for how, and the server's files of it."""

    job_id: str
    status: str
    results: Path


@dataclass
class Deployment:
    """A server and sites `site-1`, `site-2`, …; use it in a `with` statement.

    `local` has files for the `local` folder of every site by name; `{site}` in a text is the site's name.
    """

    folder: Path
    sites: int = 2
    local: dict[str, str] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _logs: list[IO[bytes]] = field(default_factory=list)
    _session: Any = None

    def __enter__(self) -> Deployment:
        self.folder = Path(self.folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._provision()
        try:
            self._start("localhost", "server.server_train", "fed_server.json", "org=example")
            for k in range(1, self.sites + 1):
                name = f"site-{k}"
                for file, text in self.local.items():
                    (self.kits / name / "local" / file).write_text(text.replace("{site}", name))
                self._start(name, "client.client_train", "fed_client.json", f"uid={name}", "org=example")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def kits(self) -> Path:
        """Where the startup kits lie, one folder a participant."""
        return self.folder / "kits" / "loopback" / "prod_00"

    def run(self, job: Path, seconds: float) -> Ended:
        """An exported job that was submitted and has ended; `DeploymentFailed` if it takes longer.

        A job that FLARE could not start (sites that answer late, on a busy machine) is submitted again, twice at most:
        none of its code has run.
        """
        until = time.monotonic() + seconds
        session = self._connected(until)
        job_id, tries = session.submit_job(str(job)), 1
        while time.monotonic() < until:
            status = str(session.get_job_meta(job_id)["status"])
            if status == NOT_STARTED and tries < 3:
                job_id, tries = session.submit_job(str(job)), tries + 1
            elif status.startswith("FINISHED"):
                return Ended(job_id, status, Path(session.download_job_result(job_id)))
            time.sleep(1.0)
        raise DeploymentFailed(f"the job took over {seconds:.0f} s\n{self.log()[-4000:]}")

    def log(self) -> str:
        """What the server and its jobs have logged."""
        texts = [path.read_text(errors="replace") for path in sorted((self.kits / "localhost").rglob("log.txt"))]
        return "\n".join([*texts, *(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))])

    def close(self) -> None:
        """End every process that was started here."""
        if self._session is not None:
            self._session.close()
            self._session = None
        end(self._running)
        self._running = []
        for log in self._logs:
            log.close()
        self._logs = []

    def _provision(self) -> None:
        sites = "\n".join(f"  - {{name: site-{k}, type: client, org: example}}" for k in range(1, self.sites + 1))
        text = PROJECT.format(port=_free_port(), admin_port=_free_port(), sites=sites, admin=ADMIN)
        (self.folder / "project.yml").write_text(text)
        command = [str(BIN / "nvflare"), "provision", "-p", "project.yml", "-w", "kits"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, env=_environment())
        if done.returncode or not self.kits.exists():
            raise DeploymentFailed(f"provisioning failed:\n{done.stdout}\n{done.stderr}")

    def _start(self, name: str, program: str, config: str, *settings: str) -> None:
        kit = self.kits / name
        (kit / "transfer").mkdir(exist_ok=True)
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{program}", "-m", str(kit), "-s", config]
        command += ["--set", "secure_train=true", *settings, "config_folder=config"]
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - closed in `close`
        self._logs.append(log)
        self._running.append(
            subprocess.Popen(command, cwd=kit, env=_environment(), stdout=log, stderr=log, start_new_session=True)
        )

    def _connected(self, until: float) -> Any:
        """A session of the administrator, once the server and all sites are there."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        said = ""
        while time.monotonic() < until:
            try:
                if self._session is None:
                    self._session = new_secure_session(ADMIN, str(self.kits / ADMIN), timeout=20.0)
                if len(self._session.get_system_info().client_info) >= self.sites:
                    return self._session
            except Exception as early:  # the server is not up yet, in one of many ways
                said = repr(early)
                self._session = None
            time.sleep(1.0)
        raise DeploymentFailed(f"the sites did not connect: {said}\n{self.log()[-4000:]}")


def _environment() -> dict[str, str]:
    path = f"{os.environ.get('PYTHONPATH', '')}:{SOURCE}".lstrip(":")
    return {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
