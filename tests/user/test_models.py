"""A user's own model: train locally, send what trains as one message, apply it on the server; state kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import cepam  # noqa: E402
import cepam.torch  # noqa: E402


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """A frozen layer with a low-rank adapter beside it, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(32, 32).requires_grad_(False)
        self.down, self.up = torch.nn.Linear(32, 2, bias=False), torch.nn.Linear(2, 32, bias=False)

    def forward(self, x: Any) -> Any:
        return self.frozen(x) + self.up(self.down(x))


def build(kind: Any) -> Adapted:
    torch.manual_seed(0)
    return Adapted().to(kind)


def train(model: Adapted) -> None:
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x = torch.randn(64, 32).to(model.frozen.weight.dtype)
    for _ in range(3):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_adapters_alone_travel(kind: Any, tmp_path: Path) -> None:
    key = cepam.Key.generate()
    codec, clip = cepam.Codec(cepam.Gaussian(0.001)), cepam.L2(0.5)
    client, server = build(kind), build(kind)
    cepam.KeyChain(key).save(tmp_path / "client.chain")
    cepam.KeyChain(key).save(tmp_path / "server.chain")

    for round in range(2):
        # The client, which may have been started again since the last round.
        chain = cepam.KeyChain.load(tmp_path / "client.chain")
        start = cepam.torch.snapshot(client)
        train(client)
        update = cepam.torch.update_between(start, client)
        with cepam.UsedAddresses.kept(tmp_path / "client.used") as used:
            message = cepam.encode_tree(codec, update, chain.address(client=0), used, clip=clip)
        chain.advance()
        chain.save(tmp_path / "client.chain")

        # The server, which knows the model.
        chain = cepam.KeyChain.load(tmp_path / "server.chain")
        like = cepam.torch.snapshot(server)
        decoded = cepam.decode_tree(codec, message, chain.address(client=0), like=like, dense=True)
        chain.advance()
        chain.save(tmp_path / "server.chain")
        cepam.torch.apply_update(server, decoded)
        assert chain.round == round + 1

    assert len(message) < 4 * 128
    assert set(decoded) == {"down.weight", "up.weight"}
    assert decoded["down.weight"].dtype == torch.float32
    assert torch.equal(client.frozen.weight, server.frozen.weight)
    assert not torch.equal(server.up.weight, build(kind).up.weight)


def test_gradients_of_a_state_dict_with_counters() -> None:
    """A whole state dict holds counters; the refusal names the one to leave out."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    codec, at = cepam.Codec(cepam.Gaussian(0.01)), cepam.Address(cepam.Key.generate(), round=0, client=0)
    with pytest.raises(ValueError, match=r"1\.num_batches_tracked must be .* got int64: leave it out"):
        cepam.encode_tree(codec, model.state_dict(), at)
    floats = {name: each for name, each in model.state_dict().items() if each.is_floating_point()}
    back = cepam.decode_tree(codec, cepam.encode_tree(codec, floats, at), at, like=floats)
    assert {name: each.shape for name, each in back.items()} == {name: each.shape for name, each in floats.items()}
