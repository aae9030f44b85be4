"""Mixtures: every weight its share, the same order everywhere, all examples in their turn."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.trainer.data.test_batches import Counting
from zerotoolsd.trainer.data.batches import Batches
from zerotoolsd.trainer.data.example_pools import (
    ExamplePool,
    JoinedPools,
    MixedPools,
    TokenWindows,
    share_counts,
)


class Shifted(Counting):
    """Tokens from `first` on."""

    def __init__(self, first: int, length: int) -> None:
        super().__init__(length)
        self.first = first

    def read(self, start: int, stop: int):  # type: ignore[no-untyped-def]
        return super().read(start, stop) + self.first


def pools(*lengths: int) -> list[ExamplePool]:
    """Of sequences of two tokens; those of pool n begin at 1,000 n."""
    return [
        TokenWindows(Shifted(1000 * number, 2 * length + 1), 2)
        for number, length in enumerate(lengths)
    ]


@given(weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=5), total=st.integers(0, 1000))
def test_shares_add_up_and_are_within_one(weights: list[float], total: int) -> None:
    found = share_counts(weights, total)
    assert sum(found) == total
    for count, weight in zip(found, weights, strict=True):
        assert abs(count - weight * total / sum(weights)) < 1 + 1e-6


def firsts(batches: Batches, epoch: int) -> list[int]:
    count = len(batches.pool)
    return [int(example.inputs[0]) for example in batches.examples(epoch * count, count)]


def test_every_epoch_has_the_shares_and_goes_on_in_each_pool() -> None:
    mixed = MixedPools(pools(10, 30), (0.75, 0.25), seed=5)
    batches = Batches(mixed, seed=5)
    assert mixed.counts == [30, 10]
    assert (len(mixed), mixed.predicted(47), mixed.size(47)) == (40, 2, 2)
    seen = [firsts(batches, epoch) for epoch in range(3)]
    for epoch in seen:
        small = Counter(first for first in epoch if first < 1000)
        assert len(small) == 10
        assert set(small.values()) == {3}
    large = [first for epoch in seen for first in epoch if first >= 1000]
    assert sorted(large) == [1000 + 2 * number for number in range(30)]
    assert seen[0] != seen[1]
    assert firsts(Batches(MixedPools(pools(10, 30), (0.75, 0.25), seed=5), seed=5), 1) == seen[1]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_order_does_not_depend_on_the_ranks(world_size: int) -> None:
    batches = Batches(MixedPools(pools(5, 9), (0.5, 0.5), seed=1), seed=1)
    for first in (0, 12, 24):
        whole = [example.inputs.tolist() for example in batches.examples(first, 4)]
        parts = [batches.rank_batch(first, 4, rank, world_size) for rank in range(world_size)]
        assert [e.inputs.tolist() for part in parts for e in part.examples] == whole


def test_joined_pools_are_one_after_the_other() -> None:
    joined = JoinedPools(pools(2, 3))
    found = [int(joined.example(number).inputs[0]) for number in range(len(joined))]
    assert found == [0, 2, 1000, 1002, 1004]
    assert (joined.predicted(4), joined.size(4)) == (2, 2)
