"""Reading an update from messages that are not all there: it must fail, and the same reader must see an opened sum."""

from __future__ import annotations

import numpy as np

from cepam.policy import ClientPolicy
from cepam.secure_aggregation import SecAggRound
from cepam.secure_aggregation.channel import self_mask
from cepam.secure_aggregation.messages import TrainReply

from . import sums
from .sums import MODEL, cohort, replies, run_round


def guess(values: np.ndarray, update: np.ndarray) -> float:
    """How well the best shifted copy of the update is found in values: near 1 if they show it."""
    return float(abs(np.corrcoef(values, update)[0, 1]))


def test_reading_from_one_message_or_from_all_but_one() -> None:
    """False-alarm rate: correlations of 4,000 independent pairs stay under 0.11 with chance 1 - 4e-12."""
    size = 4000
    group = cohort(5, size)
    signal = np.where(np.arange(size) % 2, 1.0, -1.0).astype(np.float32) * 200
    group.updates = dict.fromkeys(group.nodes, signal)
    asked = sums.settings(4, coordinates=size, clip=1e5, noise=30.0, bits=32)
    for member in group.nodes.values():
        member.policy = ClientPolicy(noise_scale=0.2, clipping_norm=1e9, rounds=9)
    round_, total = run_round(group, asked)
    assert guess(total, signal) > 0.9  # what the server may see shows it: the attack below is no straw man
    found = replies(round_)
    codec = asked.codec
    assert guess(codec.open([found[10].vector], []), signal) < 0.11
    assert guess(codec.open([found[name].vector for name in (10, 11, 12, 13)], []), signal) < 0.11


def test_reading_a_late_message_with_all_its_pairwise_keys() -> None:
    size = 4000
    group = cohort(5, size)
    signal = np.where(np.arange(size) % 2, 1.0, -1.0).astype(np.float32) * 200
    group.updates = dict.fromkeys(group.nodes, signal)
    for member in group.nodes.values():
        member.policy = ClientPolicy(noise_scale=0.2, clipping_norm=1e9, rounds=9)
    asked = sums.settings(4, coordinates=size, clip=1e5, noise=30.0, bits=32)
    round_ = SecAggRound(asked, group.roster, group.roster.names, MODEL)
    seed = b"\x05" * 32
    group.nodes[14].draw = lambda count: b"\x05" * count
    late = TrainReply.decode(group.train(14, round_.request()))
    for name in (10, 11, 12, 13):
        round_.take(name, group.train(name, round_.request()))
    for name, ask in round_.repairs().items():
        round_.take_repair(name, group.nodes[name].repair(ask))
    for name, ask in round_.unmasks().items():
        round_.take_unmask(name, group.nodes[name].unmask(ask))
    assert guess(round_.open(), signal) > 0.9
    masks = [(round_._keys[name][14], -1) for name in (10, 11, 12, 13)]
    assert guess(asked.codec.open([late.vector], masks), signal) < 0.11
    # The control: with its self-mask too it is read, so the self-mask is what keeps it closed.
    assert guess(asked.codec.open([late.vector], [*masks, (self_mask(seed, round_.salt), 1)]), signal) > 0.9
