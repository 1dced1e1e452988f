"""PyTorch models: what they send and take, and record-level privacy around a training loop of one's own."""

from cepam.torch.parameters import apply_update, gradients, snapshot, trained_parameters, update_between

__all__ = ["apply_update", "gradients", "snapshot", "trained_parameters", "update_between"]
