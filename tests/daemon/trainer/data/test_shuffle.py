import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.trainer.data.shuffle import Shuffle

SEEDS = st.integers(0, 2**63 - 1)


@given(length=st.integers(1, 700), seed=SEEDS, epoch=st.integers(0, 10**6))
def test_it_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    shuffle = Shuffle(length, seed=seed, epoch=epoch)
    assert sorted(shuffle[position] for position in range(length)) == list(range(length))


def test_it_follows_from_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        shuffle = Shuffle(100, seed=seed, epoch=epoch)
        return [shuffle[position] for position in range(100)]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_the_order_of_one_seed_is_frozen() -> None:
    """Another order would make a resumed run read other data than the run that it continues."""
    shuffle = Shuffle(1000, seed=7, epoch=0)
    assert [shuffle[position] for position in range(6)] == [925, 460, 770, 438, 848, 562]


def test_neighbours_are_scattered() -> None:
    shuffle = Shuffle(1 << 16, seed=0, epoch=0)
    steps = [abs(shuffle[i + 1] - shuffle[i]) for i in range(2000)]
    assert sum(steps) / len(steps) == pytest.approx((1 << 16) / 3, rel=0.1)


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_outside_are_refused(position: int) -> None:
    with pytest.raises(IndexError):
        Shuffle(5, seed=0, epoch=0)[position]
