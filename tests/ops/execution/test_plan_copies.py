from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layouts import Placement, shapes, store, target
from zerotools.core import dtypes
from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Key, Origin, Problem, Tensor
from zerotools.core.errors import BadFile, BadRequest, Incomplete
from zerotools.core.flat_ranges import Range, Ranges
from zerotools.ops.execution.plan_copies import Copy, RangeCopy, plan, prove_plan

KEY = Key("layer.weight", "exp_avg")


def rows(count: int) -> list[Placement]:
    return [Placement(Box((i, 0), (1, 3)), f"rank{i}", 0, (0, 1)) for i in range(count)]


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    return store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, rows(4))})


@pytest.fixture
def wanted(tmp_path: Path) -> Checkpoint:
    placed = [Placement(Box.whole((4, 3)), "out", 0, (0, 1))]
    return target(tmp_path / "out", {KEY: ((4, 3), dtypes.FLOAT32, placed)}).checkpoint


def with_chunks(checkpoint: Checkpoint, keep: slice, **changes: object) -> Checkpoint:
    tensor = checkpoint.tensors[KEY]
    kept = Tensor(tensor.dtype, tensor.shape, tensor.chunks[keep])
    return replace(checkpoint, tensors={KEY: kept}, **changes)  # type: ignore[arg-type]


def test_every_target_chunk_is_filled_from_its_sources(
    source: Checkpoint, wanted: Checkpoint
) -> None:
    (copy,) = plan(source, wanted)
    assert isinstance(copy, RangeCopy)
    assert [piece.file for piece in copy.pieces] == [f"0/rank{i}" for i in range(4)]
    assert copy.nbytes == 48


def test_a_hole_names_the_tensor_the_block_and_the_blamed_file(
    source: Checkpoint, wanted: Checkpoint
) -> None:
    problem = Problem("rank3.pt is missing", file="rank3.pt")
    damaged = with_chunks(source, slice(0, 3), problems=[problem])
    with pytest.raises(
        BadFile,
        match=r"layer.weight \(exp_avg\) is incomplete: 3 of 12 elements are in no file, the "
        r"first of them in \[3:4, 0:3\] \(rank3.pt is missing\)",
    ):
        list(plan(damaged, wanted))


def test_an_overlap_names_both_files(source: Checkpoint, wanted: Checkpoint) -> None:
    tensor = source.tensors[KEY]
    first, second, *rest = tensor.chunks
    shifted = replace(second, box=Box((0, 1), (2, 1)))
    damaged = replace(
        source, tensors={KEY: Tensor(tensor.dtype, tensor.shape, [first, shifted, *rest])}
    )
    with pytest.raises(BadFile, match=r"0/rank0 overlaps .* 0/rank1|0/rank1 overlaps .* 0/rank0"):
        list(plan(damaged, wanted))


def test_a_chunk_past_the_end_of_its_file(source: Checkpoint, wanted: Checkpoint) -> None:
    damaged = replace(source, files={**source.files, "0/rank2": 11})
    with pytest.raises(
        BadFile, match=r"0/rank2 is truncated: .* ends at byte 12, but the file has 11"
    ):
        list(plan(damaged, wanted))


def test_a_chunk_in_a_file_that_is_not_listed(source: Checkpoint, wanted: Checkpoint) -> None:
    kept = {name: size for name, size in source.files.items() if name != "0/rank2"}
    with pytest.raises(Incomplete, match=r"0/rank2 is missing, but holds layer.weight"):
        list(plan(replace(source, files=kept), wanted))


def test_a_missing_tensor_and_another_shape(source: Checkpoint, wanted: Checkpoint) -> None:
    with pytest.raises(BadRequest, match=r"has no tensor layer.weight \(exp_avg\)"):
        list(plan(replace(source, tensors={}), wanted))
    other = Tensor(dtypes.FLOAT32, (2, 6), wanted.tensors[KEY].chunks)
    with pytest.raises(BadRequest, match=r"has shape \(4, 3\) in .* and \(2, 6\) in the output"):
        list(plan(source, replace(wanted, tensors={KEY: other})))


def as_ranges(checkpoint: Checkpoint, *ranges: Range) -> Checkpoint:
    tensor = checkpoint.tensors[KEY]
    chunks = Ranges(tensor.dtype, tensor.shape, lambda: ranges)
    sizes = {each.file: 24 for each in ranges}
    return replace(
        checkpoint, tensors={KEY: Tensor(tensor.dtype, tensor.shape, chunks)}, files=sizes
    )


HALVES = (Range(0, 5, "a", 0), Range(5, 12, "b", 0))


def test_ranges_become_one_chunk_as_a_flat_vector(source: Checkpoint, wanted: Checkpoint) -> None:
    flat = as_ranges(source, Range(0, 6, "a", 0), Range(6, 12, "b", 0))
    (copy,) = plan(flat, wanted)
    assert isinstance(copy, RangeCopy)
    assert copy.target == Range(0, 12, "0/out", 0)
    assert copy.pieces == (Range(0, 6, "a", 0), Range(6, 12, "b", 0))
    assert prove_plan(flat, wanted) == 1


def test_ranges_that_are_cut_differently_become_boxes(source: Checkpoint, tmp_path: Path) -> None:
    halves = [Placement(Box((0, c), (4, n)), f"out{c}", 0, (0, 1)) for c, n in ((0, 2), (2, 1))]
    columns = target(tmp_path / "out", {KEY: ((4, 3), dtypes.FLOAT32, halves)}).checkpoint
    flat = as_ranges(source, Range(0, 6, "a", 0), Range(6, 12, "b", 0))
    assert [len(copy.pieces) for copy in plan(flat, columns)] == [2, 2]
    assert prove_plan(flat, columns) == 2


def test_a_range_beyond_its_file_is_named(source: Checkpoint, wanted: Checkpoint) -> None:
    for attempt in (prove_plan, lambda *sides: list(plan(*sides))):
        with pytest.raises(
            BadFile, match=r"b is truncated: layer.weight .* ends at byte 28, but the file has"
        ):
            attempt(as_ranges(source, *HALVES), wanted)


def lying(tensor: Tensor) -> dict[int, tuple[str, int]]:
    """File and byte offset of every element."""
    found, numbers = {}, np.arange(tensor.numel).reshape(tensor.shape)
    for chunk in tensor.chunks:
        strides = chunk.strides or row_major_strides(chunk.box.shape)
        for index in np.ndindex(chunk.box.shape):
            at = sum(a * b for a, b in zip(index, strides, strict=True))
            place = tuple(a + b for a, b in zip(index, chunk.box.start, strict=True))
            found[int(numbers[place])] = (chunk.file, chunk.offset + at * tensor.dtype.itemsize)
    return found


def moves(copy: Copy | RangeCopy, tensor: Tensor) -> dict[tuple[str, int], tuple[str, int]]:
    """Where every byte offset of an output file comes from, element by element."""
    if isinstance(copy, RangeCopy):
        target: Tensor = in_ranges(tensor, [copy.target])
        source = in_ranges(tensor, list(copy.pieces))
    else:
        target = Tensor(tensor.dtype, tensor.shape, [copy.target])
        whole = lying(Tensor(tensor.dtype, tensor.shape, [p.chunk for p in copy.pieces]))
        return {place: whole[number] for number, place in lying(target).items()}
    return {place: lying(source)[number] for number, place in lying(target).items()}


def in_ranges(tensor: Tensor, ranges: list[Range]) -> Tensor:
    return Tensor(tensor.dtype, tensor.shape, Ranges(tensor.dtype, tensor.shape, lambda: ranges))


@settings(deadline=None)
@given(st.data())
def test_the_walk_along_ranges_finds_what_the_boxes_give(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    numel = prod(shape)

    def drawn(prefix: str) -> Tensor:
        cuts = data.draw(st.sets(st.integers(0, numel), max_size=4)) | {0, numel}
        ranges = [Range(a, b, f"{prefix}{a % 2}", 3 + 4 * a) for a, b in pairwise(sorted(cuts))]
        return in_ranges(Tensor(dtypes.FLOAT32, shape, ()), ranges)

    root = Path("nowhere")
    source, wanted = drawn("s"), drawn("t")
    # A replica is not a cover of ranges in order, so this source is planned by its boxes.
    twice = [*source.chunks, replace(source.chunks[0], file="replica")]
    boxes = Tensor(source.dtype, shape, twice)
    files = dict.fromkeys(["s0", "s1", "t0", "t1", "replica"], 3 + 8 * numel)
    target = Checkpoint(root, {KEY: wanted}, Origin("test", root), files=files)
    planned = []
    for tensor in (source, boxes):
        given = Checkpoint(root, {KEY: tensor}, Origin("test", root), files=files)
        copies = list(plan(given, target))
        assert all(isinstance(copy, RangeCopy) == (tensor is source) for copy in copies)
        planned.append({place: at for c in copies for place, at in moves(c, source).items()})
    assert planned[0] == planned[1]
    assert len(planned[0]) == numel
