import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.batches import Batches, rank_share


class Counting:
    """Tokens 0, 1, 2, ...: a token is its own place."""

    vocabulary = 10**6

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> range:
        assert 0 <= start < stop <= self.length
        return range(start, stop)


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
    batches = Batches(Counting(tokens), sequence_length=sequence_length, seed=seed)
    whole = batches.sequences(start, 12)
    for world_size in (1, 2, 3, 4, 6):
        shares = [rank_share(start, 12, rank, world_size) for rank in range(world_size)]
        assert [seq for share in shares for seq in batches.sequences(*share)] == whole


@given(tokens=st.integers(3, 400), sequence_length=st.integers(2, 40))
def test_an_epoch_predicts_every_token_of_the_windows_once(
    tokens: int, sequence_length: int
) -> None:
    if tokens <= sequence_length:
        return
    batches = Batches(Counting(tokens), sequence_length=sequence_length, seed=3)
    for epoch in range(2):
        sequences = batches.sequences(epoch * batches.windows, batches.windows)
        predicted = sorted(token for sequence in sequences for token in sequence[1:])
        assert predicted == list(range(1, batches.windows * sequence_length + 1))


def test_the_order_differs_between_epochs_and_seeds() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        batches = Batches(Counting(1001), sequence_length=10, seed=seed)
        return [batches.window(number * 100 + index) for index in range(100)]

    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != epoch(1, 0)


def test_going_back_to_an_earlier_epoch_gives_the_same_order() -> None:
    batches = Batches(Counting(101), sequence_length=10, seed=0)
    before = [batches.window(index) for index in range(10)]
    batches.window(25)
    assert [batches.window(index) for index in range(10)] == before


def test_too_little_text_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadRequest, match=r"has 32 tokens and one sequence takes .* = 33"):
        Batches(Counting(32), sequence_length=32, seed=0)
