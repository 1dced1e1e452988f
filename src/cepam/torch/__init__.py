"""PyTorch models: what they send and take, and record-level privacy around a training loop of one's own."""

from cepam.torch.parameters import apply_update, gradients, snapshot, trained_parameters, update_between
from cepam.torch.private import PerExampleGradients

__all__ = ["PerExampleGradients", "apply_update", "gradients", "snapshot", "trained_parameters", "update_between"]
