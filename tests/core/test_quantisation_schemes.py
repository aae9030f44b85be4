"""Which scales belong to which elements, and what a tile of them needs."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.scaled_casts import boxes_in, drawn_casts
from zerotools.core.boxes import Box, prove_cover
from zerotools.core.quantisation_schemes import (
    BlockScaled,
    CodedFourBit,
    PackedFourBit,
    blocks_of,
    scale_shape,
)
from zerotools.core.scaled_cast import ScaledCast


@given(st.data())
def test_all_that_is_needed_is_there_and_of_the_whole_all_is_needed(data: st.DataObject) -> None:
    cast: ScaledCast = data.draw(drawn_casts)
    whole = {name: Box.whole(tensor.shape) for name, tensor in cast.inputs.items()}
    assert cast.scheme.needs(Box.whole(cast.shape)) == whole
    needed = cast.scheme.needs(data.draw(boxes_in(cast.shape)))
    assert all(whole[name].contains(box) for name, box in needed.items())


@given(st.data())
def test_blocks_are_the_box_again_and_fit(data: st.DataObject) -> None:
    cast: ScaledCast = data.draw(drawn_casts)
    box = data.draw(boxes_in(cast.shape))
    most, largest = data.draw(st.integers(1, 4000)), data.draw(st.integers(1, 200))
    parts = list(cast.blocks_within(box, most, largest))
    wide = list(cast.blocks_to_read(box, most))
    assert prove_cover(box.shape, [part.relative_to(box) for part in wide]) is None
    moved = [part.relative_to(box) for part in parts]
    assert prove_cover(box.shape, moved) is None
    grains = (1,) * (len(box.shape) - len(cast.scheme.smallest_block)) + cast.scheme.smallest_block
    for part in parts:
        is_grain = all(
            -(-end // g) - a // g <= 1
            for a, end, g in zip(part.start, part.stop, grains, strict=True)
        )
        assert is_grain or (part.numel <= largest and cast.scheme.work_bytes(part) <= most)


def test_blocks_at_the_edges_are_smaller() -> None:
    assert scale_shape((300, 256), (128, 128)) == (3, 2)
    assert blocks_of(Box((120, 0), (20, 256)), (128, 128)) == Box((0, 0), (2, 2))
    scheme = BlockScaled((128, 128), (0, 1))
    assert scheme.needs(Box((256, 200), (44, 56)))["scales"] == Box((2, 1), (1, 1))


def test_a_column_of_experts_is_in_one_group_of_each_row() -> None:
    scheme = PackedFourBit(32, is_exponent=True, blocks=True, transposed=True)
    needed = scheme.needs(Box((1, 40, 2), (1, 3, 5)))
    assert needed["payload"] == Box((1, 2, 1, 0), (1, 5, 1, 16))
    assert needed["scales"] == Box((1, 2, 1), (1, 5, 1))


@pytest.mark.parametrize(
    ("start", "shape", "covering_range"), [((1, 1), (1, 3), (6, 9)), ((0, 2), (3, 1), (2, 13))]
)
def test_a_box_of_a_flat_tensor_begins_at_a_byte(
    start: tuple[int, int], shape: tuple[int, int], covering_range: tuple[int, int]
) -> None:
    scheme = CodedFourBit((4, 5), 4)
    box = Box(start, shape)
    assert scheme.covering_range(box) == covering_range
    assert covering_range[0] % 2 == 0
    assert covering_range[1] <= prod(scheme.shape)
