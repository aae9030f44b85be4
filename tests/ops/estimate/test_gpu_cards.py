"""Cards by name and size."""

from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.gpu_cards import CARDS, Cards, cards_of

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "count", "mib"),
    [
        (4, 4, None),
        ("4", 4, None),
        ("4x24", 4, 23_028),
        ("4 x 24 GB", 4, 23_028),
        ("4\u00d724gb", 4, 23_028),
        ("2x24GiB", 2, 24_576),
        ("2xRTX 4090", 2, 24_564),
        ("2x4090", 2, 24_564),
        ("2*NVIDIA GeForce RTX 4090", 2, 24_564),
        ("RTX 3090", 1, 24_576),
        ("8xH100", 8, 81_559),
        ("8xH100-80GB", 8, 81_559),
        ("8xNVIDIA H100 80GB HBM3", 8, 81_559),
        ("2xA100-SXM4-40GB", 2, 40_960),
        ("NVIDIA A100 80GB PCIe", 1, 81_920),
        ("Tesla V100-SXM2-32GB", 1, 32_768),
        ("1x80", 1, 81_559),
        ("RTX A6000", 1, 49_140),
        ("A6000", 1, 49_140),
        ("1x20", 1, 19_200),
    ],
)
def test_cards_are_read_as_people_write_them(text: str | int, count: int, mib: int | None) -> None:
    found = cards_of(text)
    assert found.count == count
    assert found.memory == (None if mib is None else mib * MIB)


def test_this_machine_is_looked_up() -> None:
    assert cards_of("this machine") == Cards()


def test_a_size_is_that_of_the_smallest_card_and_says_so() -> None:
    assert cards_of("4x24").note == (
        "GPU memory: 22.5 GiB, the least that a card of 24 GB has (A10); name the card for "
        "its exact memory"
    )
    assert cards_of("8xH100").note == "GPU memory: 79.6 GiB, as NVML reports for H100"
    assert cards_of("2x24GiB").note is None


def test_no_card_has_more_than_it_is_sold_with() -> None:
    for gigabytes, mib in CARDS.values():
        assert 0.9 * gigabytes < mib / 1024 <= gigabytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "0 is not in the range 1 to 65536"),
        ("0x24", "0 is not in the range"),
        ("2xA100", "ambiguous; name one of A100 40GB, A100 80GB"),
        ("2xfoo", "'foo' is not a known card"),
        ("many", "is not a known card"),
        ("1x2000GiB", "no GPU has more than 1,024 GiB"),
        ("1x0", "is less than 1 MiB"),
    ],
)
def test_what_is_no_card_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        cards_of(text)
    assert said in str(caught.value)
