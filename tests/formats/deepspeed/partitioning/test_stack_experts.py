"""Blocks of experts put together, whichever kind of chunks they have."""

from __future__ import annotations

import pytest

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range, Ranges, covering_ranges
from zerotools.formats.deepspeed.partitioning.stack_experts import (
    in_whole,
    joined_blocks,
    stacked_experts,
)
from zerotools.formats.deepspeed.schema.expert_parallel import ExpertBlock, StackedExperts

BLOCKS = (ExpertBlock(2, 2, 4), ExpertBlock(0, 2, 4))


def of_rank(file: str) -> Tensor:
    """(2, 3) elements in two partitions, as ranges."""
    shape = (2, 3)
    made = [Range(0, 4, file, 40), Range(4, 6, f"{file}-next", 0)]
    return Tensor(FLOAT32, shape, Ranges(FLOAT32, shape, lambda: made))


def test_ranges_stay_ranges_and_cover_the_whole_in_order() -> None:
    parts = [(block, in_whole(of_rank(f"r{n}"), block)) for n, block in enumerate(BLOCKS)]
    whole = joined_blocks("w1", parts)
    assert whole.shape == (4, 3)
    assert isinstance(whole.chunks, Ranges)
    assert covering_ranges(whole, None) == [
        Range(0, 4, "r1", 40),
        Range(4, 6, "r1-next", 0),
        Range(6, 10, "r0", 40),
        Range(10, 12, "r0-next", 0),
    ]


def test_boxes_of_whole_blocks_are_moved_along_the_first_axis() -> None:
    chunk = Chunk(Box((0, 1), (2, 2)), "r0", 8, (3, 1))
    moved = in_whole(Tensor(FLOAT32, (2, 3), [chunk]), BLOCKS[0])
    assert list(moved.chunks) == [Chunk(Box((2, 1), (2, 2)), "r0", 8, (3, 1))]
    both = joined_blocks(
        "w1", [(BLOCKS[0], moved), (BLOCKS[1], in_whole(of_rank("r1"), BLOCKS[1]))]
    )
    assert sorted({chunk.file for chunk in both.chunks}) == ["r0", "r1", "r1-next"]


def test_files_of_experts_are_rows_and_a_lost_one_is_a_hole() -> None:
    experts = StackedExperts({"m.experts": BLOCKS})
    tensors = {
        f"m.experts.w1.{n}": Tensor(BFLOAT16, (3, 2), [Chunk(Box.whole((3, 2)), f"expert{n}", 64)])
        for n in (0, 3)
    }
    other = Tensor(FLOAT32, (), ())
    made = stacked_experts(experts, {**tensors, "m.deepspeed_experts.0.w": other})
    assert made["m.deepspeed_experts.0.w"] is other
    assert made["m.experts.w1"].shape == (4, 3, 2)
    assert [(chunk.box.start, chunk.file) for chunk in made["m.experts.w1"].chunks] == [
        ((0, 0, 0), "expert0"),
        ((3, 0, 0), "expert3"),
    ]


def test_blocks_of_two_runs_do_not_fit() -> None:
    parts = [(block, in_whole(of_rank(f"r{n}"), block)) for n, block in enumerate(BLOCKS)]
    wider = Tensor(FLOAT32, (4, 5), [Chunk(Box.whole((2, 5)), "other", 0)])
    with pytest.raises(BadFile, match=r"w1 over all experts is float32 of shape \(4, 5\) in other"):
        joined_blocks("w1", [parts[1], (BLOCKS[0], wider)])
