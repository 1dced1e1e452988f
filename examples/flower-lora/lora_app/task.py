"""The model with its adapters, what a client makes of them, and perplexity: PyTorch, transformers and peft."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lora_app.text import Encode

State = dict[str, Tensor]


@dataclass
class Tuned:
    """A frozen language model with adapters in bf16, and how its text becomes tokens."""

    model: Any
    encode: Encode

    @property
    def adapters(self) -> dict[str, nn.Parameter]:
        """What trains, and what travels: the adapters alone."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def state(self) -> State:
        """The adapters, widened to float32, which is exact: what Flower's arrays can hold."""
        return {name: p.detach().float().cpu().clone() for name, p in self.adapters.items()}

    def load(self, state: State) -> None:
        """Set the adapters to these values, rounded to bf16."""
        with torch.no_grad():
            for name, p in self.adapters.items():
                p.copy_(state[name].to(p))

    def losses(self, rows: Tensor) -> Tensor:
        """The mean loss a token of every example."""
        tokens = rows.to(next(self.model.parameters()).device)
        logits = self.model(input_ids=tokens).logits.float()
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return each.view(len(tokens), -1).mean(1)


@cache
def tuned(name: str, rank: int, seed: int, device: str = "auto") -> Tuned:
    """The named model (hub or folder) or a tiny random one, with fresh adapters; "auto" is a GPU where there is one."""
    torch.manual_seed(seed)
    kind = torch.bfloat16
    encode: Encode
    if name == "tiny":
        shape = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4}
        base: Any = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=256, **shape)).to(kind)
        encode = lambda text: list(text.encode())  # noqa: E731
    else:
        base = AutoModelForCausalLM.from_pretrained(name, dtype=kind)
        tokens = AutoTokenizer.from_pretrained(name)
        encode = lambda text: tokens(text)["input_ids"]  # noqa: E731
    # The start is the same everywhere: adapters that begin at nothing change nothing yet.
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
    for p in model.parameters():
        p.data = p.data.to(kind)
    there = "cuda" if torch.cuda.is_available() else "cpu"
    return Tuned(model.to(there if device == "auto" else device), encode)


def trained(made: Tuned, received: State, rows: Tensor, steps: int, rate: float) -> State:
    """What was received plus what local steps of AdamW moved the adapters by: unit client."""
    made.load(received)
    start = made.state()
    optimizer = torch.optim.AdamW(made.adapters.values(), lr=rate, weight_decay=0.0)
    draw = torch.Generator().manual_seed(secrets.randbits(62))
    made.model.train()
    for _ in range(steps):
        batch = rows[torch.randint(0, len(rows), (8,), generator=draw)]
        optimizer.zero_grad()
        made.losses(batch).mean().backward()
        optimizer.step()
    # Less the rounding of what was received: the difference is what was learned, nothing else.
    return {name: received[name] + (value - start[name]) for name, value in made.state().items()}


def clipped_step(made: Tuned, received: State, rows: Tensor, draws: int, clip: float) -> State:
    """What was received less the clipped gradients of a fresh Poisson batch over its expected size: unit record.

    The choice of examples is part of the guarantee, so it is drawn from the system's secret randomness.
    """
    made.load(received)
    made.model.eval()
    draw = torch.Generator().manual_seed(secrets.randbits(62))
    chosen = rows[torch.rand(len(rows), generator=draw) < draws / len(rows)]
    total = {name: torch.zeros_like(value) for name, value in received.items()}
    for row in chosen:
        slopes = torch.autograd.grad(made.losses(row[None]).sum(), list(made.adapters.values()))
        each = [slope.float().cpu() for slope in slopes]
        norm = math.sqrt(sum(float(slope.double().square().sum()) for slope in each))
        if math.isfinite(norm):
            for name, slope in zip(total, each):
                total[name] += slope * min(1.0, clip * (1 - 2**-16) / max(norm, 1e-30))
    return {name: received[name] - total[name] / draws for name in total}


@torch.no_grad()
def perplexity(made: Tuned, state: State, rows: Tensor) -> float:
    """exp of the mean loss a token."""
    made.load(state)
    made.model.eval()
    found = torch.cat([made.losses(rows[at : at + 16]).cpu() for at in range(0, len(rows), 16)])
    return math.exp(float(found.double().mean()))
