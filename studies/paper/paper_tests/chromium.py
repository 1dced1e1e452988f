"""A headless Chromium driven over a pair of pipes by the DevTools protocol; needs nothing but the browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-extensions", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0


def found() -> str | None:
    """The browser's path, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one tab; what the tab complains of and requests is kept in `complaints` and `requests`."""

    def __init__(self, program: str, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        self._pending, self._last = b"", 0
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []

        def rename() -> None:
            # Chromium takes commands on descriptor 3 and answers on 4; by way of 100 and 101, since ours may be 3 or 4.
            taken = os.dup2(theirs_in, 100), os.dup2(theirs_out, 101)
            os.dup2(taken[0], 3)
            os.dup2(taken[1], 4)

        self._process = subprocess.Popen(
            [program, *QUIET, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=rename,
        )  # fmt: skip
        for fd in (theirs_in, theirs_out):
            os.close(fd)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        self._last += 1
        order = {"id": self._last, "method": method, "params": given}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._last:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                return dict(heard["result"])

    def open(self, path: Path, width: int = 1200, dark: bool = False) -> None:
        """Load the file in a window of this width, and wait for the page's load event."""
        self.complaints, self.requests, self._events = [], [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._hear()
        self.value("new Promise(done => setTimeout(() => done(1), 100))")  # late errors are heard too

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{expression}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _hear(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError(f"Chromium said nothing (exit code {self._process.poll()})")
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        self._note(heard.get("method", ""), heard.get("params", {}))
        return heard

    def _note(self, method: str, given: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{given['entry']['level']}: {given['entry']['text']}")
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console.{given['type']}: {given['args']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {given['exceptionDetails']['text']}")
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith("data:"):
            self.requests.append(given["request"]["url"])
