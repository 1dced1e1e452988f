"""A run that is killed after its second round and resumed, beside one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cepam import fl


def assert_resumed_like_whole(settings: fl.Settings, data: fl.Dataset, folder: Path) -> None:
    """Check that both runs wrote the same bytes of metrics."""
    settings = settings.updated({"run.checkpoint_every": 1})
    fl.train(settings, folder / "whole", data)

    def killed(progress: fl.Progress) -> None:
        if progress.lines[0]["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.train(settings, folder / "torn", data, watch=killed)
    fl.train(settings, folder / "torn", data, resume=True)
    whole, torn = ((folder / name / "metrics.jsonl").read_bytes() for name in ("whole", "torn"))
    assert whole == torn
