from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile, BadRequest
from zerotoolsd.trainer.data.batches import Batches, Prefetch
from zerotoolsd.trainer.data.example_pools import TokenWindows, hold_out


class Counting:
    """Tokens 0, 1, 2, ...: a token is its own place."""

    vocabulary = 10**6

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        assert 0 <= start < stop <= self.length
        return np.arange(start, stop)


def batches_of(tokens: int, sequence_length: int, seed: int) -> Batches:
    return Batches(TokenWindows(Counting(tokens), sequence_length), seed=seed)


@given(
    tokens=st.integers(3, 500),
    sequence_length=st.integers(2, 40),
    seed=st.integers(0, 99),
    start=st.integers(0, 1000),
)
def test_every_world_size_reads_the_same_global_batch(
    tokens: int, sequence_length: int, seed: int, start: int
) -> None:
    if tokens <= sequence_length:
        return
    batches = batches_of(tokens, sequence_length, seed)
    whole = [example.inputs.tolist() for example in batches.examples(start, 12)]
    for world_size in (1, 2, 3, 4, 6):
        shares = [batches.rank_batch(start, 12, rank, world_size) for rank in range(world_size)]
        read = [example.inputs.tolist() for share in shares for example in share.examples]
        assert read == whole
        assert {share.predicted for share in shares} == {12 * sequence_length}


@given(tokens=st.integers(3, 400), sequence_length=st.integers(2, 40))
def test_an_epoch_predicts_every_token_of_the_windows_once(
    tokens: int, sequence_length: int
) -> None:
    if tokens <= sequence_length:
        return
    batches = batches_of(tokens, sequence_length, 3)
    for epoch in range(2):
        count = len(batches.pool)
        examples = batches.examples(epoch * count, count)
        predicted = sorted(token for example in examples for token in example.targets)
        assert predicted == list(range(1, count * sequence_length + 1))


def test_the_order_differs_between_epochs_and_seeds() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        batches = batches_of(1001, 10, seed)
        return [batches.number(number * 100 + index) for index in range(100)]

    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != epoch(1, 0)


def test_going_back_to_an_earlier_epoch_gives_the_same_order() -> None:
    batches = batches_of(101, 10, 0)
    before = [batches.number(index) for index in range(10)]
    batches.number(25)
    assert [batches.number(index) for index in range(10)] == before


def test_too_little_text_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadRequest, match=r"has 32 tokens, but one sequence takes .* = 33"):
        TokenWindows(Counting(32), 32)


@given(count=st.integers(2, 300), fraction=st.floats(0.001, 0.99), seed=st.integers(0, 9))
def test_what_is_held_out_is_not_trained_on(count: int, fraction: float, seed: int) -> None:
    pool = TokenWindows(Counting(count * 3 + 1), 3)
    if max(1, round(count * fraction)) >= count:
        with pytest.raises(BadRequest, match="leaves no sequence for training"):
            hold_out(pool, fraction, seed)
        return
    parts = hold_out(pool, fraction, seed)
    starts = [[part.example(number).inputs[0] for number in range(len(part))] for part in parts]
    assert sorted(starts[0] + starts[1]) == list(range(0, 3 * count, 3))
    assert len(starts[1]) == max(1, round(count * fraction))


def test_the_shares_are_those_of_the_batches() -> None:
    plain, batches = batches_of(101, 5, 3), batches_of(101, 5, 3)
    with Prefetch(batches, 6, 1, 2) as ahead:
        for first in (0, 6, 12, 18, 60, 66):
            found, wanted = ahead.rank_batch(first), plain.rank_batch(first, 6, 1, 2)
            assert [e.inputs.tolist() for e in found.examples] == [
                e.inputs.tolist() for e in wanted.examples
            ]
            assert (found.predicted, found.tokens) == (wanted.predicted, wanted.tokens)


def test_an_error_comes_with_the_step_that_needs_the_data() -> None:
    batches = batches_of(11, 5, 3)
    read = batches.pool.tokens.read  # type: ignore[attr-defined]
    seen: list[int] = []

    def once(start: int, stop: int) -> object:
        seen.append(start)
        if len(seen) > 1:
            raise BadFile("it has become shorter")
        return read(start, stop)

    batches.pool.tokens.read = once  # type: ignore[attr-defined]
    with Prefetch(batches, 1, 0, 1) as ahead:
        ahead.rank_batch(0)
        with pytest.raises(BadFile, match="become shorter"):
            ahead.rank_batch(1)
