"""Shamir shares of which some are wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.secure_aggregation.channel import PRIME, SHARE_BYTES, split
from cepam.secure_aggregation.share_decoding import decode


def dealt(threshold: int, count: int, wrong: int, seed: int) -> tuple[bytes, list[int], list[bytes], frozenset[int]]:
    """A secret, the places of its shares in some order, the shares, and the places of the wrong ones."""
    source = random.Random(seed)
    secret = source.randbytes(32)
    shares = split(secret, threshold, count + 3, source.randbytes)
    places = source.sample(range(count + 3), count)
    bad = frozenset(places[:wrong])
    for place in bad:
        shift = source.choice([1, PRIME - 1, source.randrange(1, PRIME)])
        shares[place] = ((int.from_bytes(shares[place], "little") + shift) % PRIME).to_bytes(SHARE_BYTES, "little")
    source.shuffle(places)
    return secret, places, [shares[place] for place in places], bad


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16), st.integers(0, 10), st.integers(0, 2**32), st.data())
def test_half_of_the_spare_shares_may_be_wrong(threshold: int, spare: int, seed: int, data: st.DataObject) -> None:
    wrong = data.draw(st.integers(0, spare // 2))
    secret, places, shares, bad = dealt(threshold, threshold + spare, wrong, seed)
    assert decode(places, shares, threshold) == (secret, bad)


@pytest.mark.parametrize(("threshold", "spare", "wrong"), [(3, 0, 1), (3, 1, 1), (24, 6, 4), (5, 4, 3), (4, 6, 10)])
def test_more_wrong_shares_never_give_another_answer_in_silence(threshold: int, spare: int, wrong: int) -> None:
    """With fewer spare shares another polynomial may fit: then the commitment tells. Errors are ValueError alone."""
    for seed in range(20):
        secret, places, shares, bad = dealt(threshold, threshold + spare, min(wrong, threshold + spare), seed)
        try:
            found = decode(places, shares, threshold)
        except ValueError:
            continue
        assert found != (secret, bad) or 2 * len(bad) <= spare
        assert len(found[1]) <= spare // 2


def test_what_are_no_shares() -> None:
    _, places, shares, _ = dealt(3, 6, 0, 1)
    for given_places, given_shares, threshold in (
        ([0, 0, *places[2:]], shares, 3), (places, shares[:-1], 3), (places, shares, 7), (places, shares, 0),
        (places, [b"\xff" * SHARE_BYTES, *shares[1:]], 3), (places, [b"", *shares[1:]], 3),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="share"):
            decode(given_places, given_shares, threshold)
