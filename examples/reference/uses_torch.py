"""Every public name of `cepam.torch` at work: PyTorch models."""

import torch

import cepam
import cepam.torch

model = torch.nn.Linear(4, 2)
assert set(cepam.torch.trained_parameters(model)) == {"weight", "bias"}
start = cepam.torch.snapshot(model)
model(torch.ones(1, 4)).sum().backward()
slopes = cepam.torch.gradients(model)
cepam.torch.apply_update(model, slopes, scale=-0.1)  # a step down
moved = cepam.torch.update_between(start, model)

records = torch.randn(100, 4), torch.arange(100) % 2
private = cepam.torch.PerExampleGradients(model, torch.nn.functional.cross_entropy, cepam.L2(1.0))
gradient = private.gradient(records, expected_batch_size=20)  # a secret Poisson batch, every record's part clipped
assert set(gradient) == {"weight", "bias"}
