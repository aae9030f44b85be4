"""Blocks of the Hub's tensors, and the same blocks seen from there."""

from __future__ import annotations

import numpy as np
import pytest

from zerotools.core.boxes import Box, prove_cover
from zerotools.core.hub_layout import (
    HubBlock,
    is_unchanged,
    pieces_of,
    simplified_block,
    whole_tensor_block,
)

Blocks = list[HubBlock]


def rows_of_halves() -> Blocks:
    """Rotary halves apart (row 0, 2, 4, ... of each head first), as some models keep them."""
    whole = (24, 5)
    return [
        HubBlock(
            "rope",
            whole,
            Box((6 * n, 0), (6, 5)),
            offset=(n // 2 * 12 + n % 2) * 5,
            strides=(10, 1),
        )
        for n in range(4)
    ]


LAYOUTS: dict[str, tuple[tuple[int, ...], Blocks]] = {
    "renamed": ((3, 4), [whole_tensor_block("x", (3, 4))]),
    "of no dimension": ((), [whole_tensor_block("x", ())]),
    "empty": ((0, 4), [whole_tensor_block("x", (0, 4))]),
    "stacked": (
        (3, 2, 4),
        [HubBlock(f"e{n}", (2, 4), Box((n, 0, 0), (1, 2, 4))) for n in range(3)],
    ),
    "joined": (
        (5, 4),
        [HubBlock("a", (2, 4), Box((0, 0), (2, 4))), HubBlock("b", (3, 4), Box((2, 0), (3, 4)))],
    ),
    "stacked and joined": (
        (2, 5, 4),
        [HubBlock(f"a{n}", (2, 4), Box((n, 0, 0), (1, 2, 4))) for n in range(2)]
        + [HubBlock(f"b{n}", (3, 4), Box((n, 2, 0), (1, 3, 4))) for n in range(2)],
    ),
    "transposed": ((4, 3), [HubBlock("x", (3, 4), Box.whole((4, 3)), strides=(1, 4))]),
    "another shape": ((8, 24), [HubBlock("x", (8, 3, 2, 2, 2), Box.whole((8, 24)))]),
    "a shape more": ((8, 3), [HubBlock("x", (8, 1, 3), Box.whole((8, 3)))]),
    "rows apart": ((24, 5), rows_of_halves()),
}


def hub_tensors(blocks: Blocks) -> dict[str, np.ndarray]:
    """Every tensor that the blocks name, with elements that differ everywhere."""
    made: dict[str, np.ndarray] = {}
    for block in blocks:
        numel = Box.whole(block.shape).numel
        made.setdefault(block.name, np.arange(numel).reshape(block.shape) + 1000 * len(made))
    return made


def filled(shape: tuple[int, ...], blocks: Blocks, hub: dict[str, np.ndarray]) -> np.ndarray:
    """The model's tensor, by what a block is said to mean."""
    tensor = np.full(shape, -1)
    for block in blocks:
        flat = hub[block.name].reshape(-1)
        for index in np.ndindex(*block.box.shape):
            at = tuple(a + b for a, b in zip(block.box.start, index, strict=True))
            steps = zip(index, block.steps, strict=True)
            tensor[at] = flat[block.offset + sum(i * s for i, s in steps)]
    return tensor


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
def test_pieces_make_the_hubs_tensors_of_the_models(name: str) -> None:
    shape, blocks = LAYOUTS[name]
    hub = hub_tensors(blocks)
    tensor = filled(shape, blocks, hub)
    again = {key: np.full(value.shape, -1) for key, value in hub.items()}
    covered: dict[str, list[Box]] = {key: [] for key in hub}
    for block in blocks:
        for piece in pieces_of("model", block):
            part = tensor[slices(piece.source)]
            kept = [dim for dim in piece.dims if dim >= 0]
            dropped = tuple(dim for dim in range(part.ndim) if dim not in kept)
            assert all(part.shape[dim] == 1 for dim in dropped)
            order = np.argsort(np.argsort(kept))
            moved = part.squeeze(dropped).transpose(order)
            again[block.name][slices(piece.box)] = moved.reshape(piece.box.shape)
            covered[block.name].append(piece.box)
    for key, value in hub.items():
        assert (again[key] == value).all()
        assert prove_cover(value.shape, covered[key]) is None


def test_a_part_is_what_the_block_has_of_it() -> None:
    shape, blocks = LAYOUTS["transposed"]
    hub = hub_tensors(blocks)
    part = blocks[0].part(Box((1, 1), (9, 1)))
    assert part is not None
    assert part.box == Box((1, 1), (3, 1))
    found = filled(shape, [part], hub)[slices(part.box)]
    assert (found == hub["x"].T[1:4, 1:2]).all()
    assert blocks[0].part(Box((0, 3), (4, 9))) is None


def test_strides_that_say_nothing_are_left_out() -> None:
    block = HubBlock("x", (3, 4), Box((0, 0, 0), (1, 3, 4)), strides=(1, 4, 1))
    assert simplified_block(block).strides is None
    assert simplified_block(LAYOUTS["transposed"][1][0]).strides == (1, 4)
    assert is_unchanged("x", (3, 4), (whole_tensor_block("x", (3, 4)),))
    assert not is_unchanged("y", (3, 4), (whole_tensor_block("x", (3, 4)),))
    assert not is_unchanged("x", (3, 4), (whole_tensor_block("x", (12,)),))
