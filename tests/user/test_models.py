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
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x = torch.randn(64, 32).to(model.frozen.weight.dtype)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


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
        cepam.encode_tree(codec, model.state_dict(), at, unclipped=True)
    floats = {name: each for name, each in model.state_dict().items() if each.is_floating_point()}
    back = cepam.decode_tree(codec, cepam.encode_tree(codec, floats, at, unclipped=True), at, like=floats)
    assert {name: each.shape for name, each in back.items()} == {name: each.shape for name, each in floats.items()}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_nested_state_in_each_type_comes_back_like_it_went(kind: Any) -> None:
    torch.manual_seed(0)
    codec, at = cepam.Codec(cepam.Gaussian(0.01)), cepam.Address(cepam.Key.generate(), round=0, client=0)
    body = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(4, 3)).to(kind)
    sent = {"body": body.state_dict(), "heads": [{"scale": torch.ones((), dtype=kind)}, torch.zeros(2, 0, dtype=kind)]}
    message = cepam.encode_tree(codec, sent, at, clip=cepam.L2(1.0))
    # The server filled its dict in another order, and is in float32.
    like = {"heads": sent["heads"], "body": dict(reversed(sent["body"].items()))}
    back = cepam.decode_tree(codec, message, at, like=like)
    shapes = {name: (each.shape, each.dtype) for name, each in sent["body"].items()}
    assert {name: (each.shape, each.dtype) for name, each in back["body"].items()} == shapes
    assert (back["heads"][0]["scale"].shape, back["heads"][1].shape) == ((), (2, 0))
    wide = torch.float64 if kind == torch.float64 else torch.float32
    dense = cepam.decode_tree(codec, message, at, like=like, dense=True)
    assert {each.dtype for each in dense["body"].values()} == {wide}
    with pytest.raises(cepam.errors.WrongAddress, match="another structure"):
        cepam.decode_tree(codec, message, at, like={"body": sent["body"]})


def test_gradients_travel_and_step_the_server_down() -> None:
    codec, at = cepam.Codec(cepam.Gaussian(1e-4)), cepam.Address(cepam.Key.generate(), round=0, client=0)
    client, server = build(torch.float32), build(torch.float32)
    x = torch.randn(64, 32)
    client(x).square().mean().backward()
    message = cepam.encode_tree(codec, cepam.torch.gradients(client), at, clip=cepam.L2(1.0))
    before = server(x).square().mean().item()
    slope = cepam.decode_tree(codec, message, at, like=cepam.torch.snapshot(server), dense=True)
    cepam.torch.apply_update(server, slope, scale=-1.0)
    assert server(x).square().mean().item() < before


def test_mistakes_name_the_way_out() -> None:
    model, codec = torch.nn.Linear(3, 2), cepam.Codec(cepam.Gaussian(0.01))
    at = cepam.Address(cepam.Key.generate(), round=0, client=0)
    for update in (model.state_dict(), list(model.parameters()), model.weight.detach()):
        with pytest.raises(ValueError, match=r"cepam\.encode_tree\(codec, update, at, clip=…\) takes any shape"):
            codec.encode(update, at)
    with pytest.raises(ValueError, match=r"got Linear: send cepam\.torch\.update_between"):
        cepam.encode_tree(codec, model, at, clip=cepam.L2(1.0))
    with pytest.raises(ValueError, match=r"cepam\.encode_tree\(…, clip=…\) bounds all arrays"):
        cepam.L2(1.0).apply(model.state_dict())
