"""Next-token prediction: which tokens are looked at, what counts, and that it learns."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from cepam import fl
from cepam.fl.data.texts import PADDING, VOCABULARY, encode, next_tokens
from cepam.fl.models.sequences import LaggedTokens, token_accuracy, token_loss


def test_logits_are_sums_over_the_last_tokens() -> None:
    torch.manual_seed(3)
    module = LaggedTokens(3, 7)
    torch.nn.init.normal_(module.table.weight)
    tokens = torch.tensor([[1, 2, 3, 4]])
    rows = module.table.weight.reshape(3, 7, 7)
    torch.testing.assert_close(module(tokens)[0, 3], rows[0, 4] + rows[1, 3] + rows[2, 2])
    torch.testing.assert_close(module(tokens)[0, 0], rows[0, 1] + rows[1, PADDING] + rows[2, PADDING])


def test_padding_is_not_counted() -> None:
    logits = torch.zeros(1, 4, 5)
    logits[0, 0, 2] = logits[0, 1, 1] = 50.0
    targets = torch.tensor([[2, 3, PADDING, PADDING]])
    assert token_accuracy(logits, targets) == 0.5
    assert float(token_loss(logits, targets)) == pytest.approx(25.0, abs=1e-4)
    assert float(token_loss(logits[:, 2:], targets[:, 2:])) == 0.0  # nothing to predict


def made() -> fl.Dataset:
    text = encode("abcabdabc" * 40)
    return next_tokens("made", {f"user {k}": (text[k:], text) for k in range(12)}, 20)


def test_a_private_run_of_whole_users_learns(tmp_path: Path) -> None:
    settings = fl.preset("shakespeare").updated(
        {"training.rounds": 8, "run.simulate": True, "clients.sampling_rate": 1.0, "clients.sampling": "fixed",
         "privacy.epsilon": 60.0, "privacy.delta": 0.01, "training.server_learning_rate": 30.0, "run.evaluate_every": 8}
    )  # fmt: skip
    summary = fl.train(settings, tmp_path / "run", made())
    assert summary["weights"] == 3 * VOCABULARY**2
    assert summary["epsilon"] <= 60.0
    assert summary["accuracy"] > 0.6  # the table starts from zero, where every token is as likely
    assert summary["metrics"]["loss"]["mean"] < math.log(VOCABULARY)


def test_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="next-token"):
        fl.build("next-token", fl.synthetic(20, 10))
    numbers = fl.from_arrays((np.zeros((4, 3)), np.zeros((4, 3))), (np.zeros((2, 3)), np.zeros((2, 3))), classes=0)
    with pytest.raises(ValueError, match="next-token"):
        fl.build("next-token", numbers)
