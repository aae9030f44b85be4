"""Which elements a scale is for: as a config says, or as two shapes prove."""

from __future__ import annotations

from itertools import product

from zerotools.core.quantisation_schemes import BlockScaled, scale_shape
from zerotools.ops.quantised.find_fp8_fp4_int8 import block_scheme

SIZES = (1, 2, 3, 5, 7, 16, 33, 100, 130)
BLOCKS = (1, 2, 3, 16, 50, 64, 128)


def _scales_of_elements(size: int, block: int) -> list[int]:
    return [element // block for element in range(size)]


def test_a_block_without_a_config_is_the_true_one_or_none() -> None:
    proved = set()
    for shape in product(SIZES, repeat=2):
        for block in product(BLOCKS, repeat=2):
            found = block_scheme(shape, scale_shape(shape, block), (), is_exponent=False)
            assert found is not None
            if isinstance(found, BlockScaled):
                proved.add((shape, block))
                for size, true, said in zip(shape, block, found.block, strict=True):
                    assert _scales_of_elements(size, true) == _scales_of_elements(size, said)
    rows = {((7, 100), (1, 128)), ((100, 100), (128, 128)), ((5, 16), (2, 1)), ((33, 2), (1, 1))}
    assert rows <= proved
    assert not {((100, 100), (64, 64)), ((130, 130), (128, 128)), ((16, 100), (1, 50))} & proved


def test_a_block_of_the_config_is_taken_where_it_has_so_many_scales() -> None:
    for shape in product(SIZES, repeat=2):
        for block in product(BLOCKS, repeat=2):
            held = scale_shape(shape, block)
            found = block_scheme(shape, held, (block,), is_exponent=False)
            assert isinstance(found, BlockScaled)
            for size, true, said in zip(shape, block, found.block, strict=True):
                assert _scales_of_elements(size, true) == _scales_of_elements(size, said)
