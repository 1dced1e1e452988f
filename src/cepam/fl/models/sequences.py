"""Next-token prediction: a log-linear model of the last few tokens, its loss and its accuracy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cepam.fl.data.texts import PADDING, VOCABULARY

LAGS = 3


class LaggedTokens(nn.Module):
    """The logits of the next token are a sum: one row of a table for each of the last few tokens.

    The negative log-likelihood is convex, and noise on one row of the table leaves the others as they are.

    Args:
        lags: How many of the last tokens are looked at.
        vocabulary: How many tokens there are.
    """

    def __init__(self, lags: int = LAGS, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.lags, self.vocabulary = lags, vocabulary
        self.table = nn.Embedding(lags * vocabulary, vocabulary)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits after each token of the rows; before a row's first token there is padding."""
        length = tokens.shape[1]
        shifted = [F.pad(tokens, (lag, 0))[:, :length] + lag * self.vocabulary for lag in range(self.lags)]
        logits: Tensor = self.table(torch.stack(shifted)).sum(0)
        return logits


def _counted(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which targets are no padding, and one over their number."""
    real = (targets != PADDING).float()
    return real, 1.0 / real.sum().clamp(min=1.0)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of a record's targets, in nats; padding is not counted."""
    real, over = _counted(targets)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (each * real.flatten()).sum() * over


def token_accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of a record's targets that have the largest logit; padding is not counted."""
    real, over = _counted(targets)
    return ((logits.argmax(2) == targets).float() * real).sum() * over
