"""What Flower's processes set before an app runs, for tests that run in one process."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


@pytest.fixture(autouse=True)
def _identity(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    from flwr.supercore.task_identity import TaskIdentity

    from .fakes import RUN

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """No test here waits for the disk: that accounts reach it is for tests/policy/test_account.py."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
