"""Any cut of any parameters is read back; the drawings in the docstrings are what is computed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED
from tests.layouts import load, shapes
from zerotools.core.boxes import prove_cover
from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range, Ranges, covering_ranges, ranges_of
from zerotools.formats import read
from zerotools.formats.deepspeed.partitioning import flat_layout
from zerotools.formats.deepspeed.partitioning.flat_groups import (
    alignment_of,
    flat_order,
    paddings_of,
)
from zerotools.formats.deepspeed.partitioning.flat_layout import (
    FlatLayout,
    RankRange,
    WholeParameters,
    is_of_muon,
    partition_contents,
    partition_size,
)
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.optim_states import FlatPartition
from zerotools.formats.deepspeed.writing import target_layout
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.inspection.inspect import inspect

KEY = Key("w", "param")

SHAPES = {"w": (2, 3), "b": (3,), "v": (5,)}
PADDING = ".."


def drawn(layout: FlatLayout) -> str:
    """The partitions of all ranks, an element a cell."""
    ranks = [[PADDING] * layout.partition_numel for _ in range(layout.dp_size)]
    for name, shape, offset in layout.offsets():
        for rank, at, begin, end in layout.rank_ranges(shape, offset):
            ranks[rank][at : at + end - begin] = [f"{name}{i}" for i in range(begin, end)]
    for cells, content in zip(ranks, partition_contents(layout), strict=True):
        gaps = [i for start, count in content.gaps for i in range(start, start + count)]
        assert [i for i, cell in enumerate(cells) if cell == PADDING] == gaps
    return " | ".join(" ".join(cells) for cells in ranks)


def zero12(
    given_shapes: Mapping[str, tuple[int, ...]], paddings: tuple[int, ...] = ()
) -> FlatLayout:
    total = FlatLayout(dict(given_shapes), paddings, 2, None).total
    return FlatLayout(dict(given_shapes), paddings, 2, partition_size(total, 2))


def in_round_robin() -> dict[str, tuple[int, ...]]:
    return {name: SHAPES[name] for name in flat_order(list(SHAPES), 2, round_robin=True)}


def aligned() -> FlatLayout:
    return zero12(SHAPES, tuple(paddings_of(SHAPES, alignment_of(FLOAT32))))


@pytest.mark.parametrize(
    ("layout", "numel"),
    [
        (zero12(SHAPES), 8),
        (zero12(in_round_robin()), 8),
        (aligned(), 10),
        (FlatLayout(SHAPES, (), 2, None), 8),
    ],
    ids=["stages 1 and 2", "round robin", "aligned", "stage 3"],
)
def test_the_drawing_of_a_group_is_true(layout: FlatLayout, numel: int) -> None:
    lines = [line.strip() for line in str(flat_layout.__doc__).splitlines()]
    assert layout.partition_numel == numel
    assert drawn(layout) in lines


def test_b_lies_on_both_sides_of_the_border() -> None:
    layout = zero12(SHAPES)
    offset = {name: offset for name, _, offset in layout.offsets()}["b"]
    assert list(layout.rank_ranges((3,), offset)) == [RankRange(0, 6, 0, 2), RankRange(1, 0, 2, 3)]


@pytest.mark.parametrize(("ranks", "size"), [(2, 5), (3, 5)])
def test_the_drawing_of_sub_groups_is_true(ranks: int, size: int) -> None:
    lines = [line.strip() for line in str(target_layout.split_sub_groups.__doc__).splitlines()]
    for number, own in enumerate(target_layout.split_sub_groups(SHAPES, ranks, size)):
        layout = FlatLayout(own, (), ranks, None)
        assert f"sub-group {number}    {drawn(layout)}" in lines


def test_a_large_size_makes_one_sub_group() -> None:
    counts = {size: len(target_layout.split_sub_groups(SHAPES, 2, size)) for size in (5, 6, 7, 8)}
    assert counts == {5: 2, 6: 1, 7: 1, 8: 1}


def stored(root: Path, rows: list[Array]) -> list[FlatPartition | None]:
    """One file per rank, its partition behind a few bytes of something else."""
    partitions: list[FlatPartition | None] = []
    for rank, values in enumerate(rows):
        (root / f"rank{rank}").write_bytes(b"head" * rank + values.tobytes())
        partitions.append(FlatPartition(f"rank{rank}", 4 * rank, values.size, FLOAT32))
    return partitions


def layout_of(drawn: list[tuple[int, ...]], ranks: int, zero12_numel: int | None) -> FlatLayout:
    return FlatLayout({f"p{i}": shape for i, shape in enumerate(drawn)}, (), ranks, zero12_numel)


def check(
    root: Path,
    layout: FlatLayout,
    partitions: list[FlatPartition | None],
    values: list[Array],
) -> None:
    found = layout.tensors(FLOAT32, partitions)
    for (_, tensor), expected in zip(found, values, strict=True):
        ranges = ranges_of(tensor)
        assert ranges is not None
        assert read_back(root, tensor.shape, ranges).tobytes() == expected.tobytes()


def read_back(root: Path, shape: tuple[int, ...], ranges: list[Range]) -> Array:
    chunks = Ranges(FLOAT32, shape, lambda: ranges)
    tensors = {KEY: Tensor(FLOAT32, shape, chunks)}
    assert covering_ranges(tensors[KEY], None) == ranges
    assert prove_cover(shape, [chunk.box for chunk in chunks]) is None
    return load(Checkpoint(root, tensors, Origin("test", root)), KEY)


def numbered(shape: tuple[int, ...], first: int) -> Array:
    return np.arange(first, first + prod(shape), dtype=np.float32).reshape(shape)


@given(st.lists(shapes, min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 2))
def test_stages_1_and_2(drawn: list[tuple[int, ...]], ranks: int, cut_off: int) -> None:
    values = [numbered(shape, 1000 * i) for i, shape in enumerate(drawn)]
    flat = np.concatenate([each.ravel() for each in values])
    partition = -(-flat.size // (2 * ranks)) * 2
    padded = np.zeros(partition * ranks, np.float32)
    padded[: flat.size] = flat
    rows = list(padded.reshape(ranks, partition))
    # Trailing padding is cut from the last rank, by more or less, as versions differ.
    spare = min(cut_off, partition * ranks - flat.size, partition)
    rows[-1] = rows[-1][: partition - spare]
    with TemporaryDirectory() as directory:
        partitions = stored(Path(directory), rows)
        check(Path(directory), layout_of(drawn, ranks, partition), partitions, values)


@given(st.lists(shapes, min_size=1, max_size=4), st.integers(1, 5))
def test_stage_3(drawn: list[tuple[int, ...]], ranks: int) -> None:
    values = [numbered(shape, 1000 * i) for i, shape in enumerate(drawn)]
    widths = [-(-prod(shape) // ranks) for shape in drawn]
    rows: list[list[Array]] = [[] for _ in range(ranks)]
    for each, width in zip(values, widths, strict=True):
        padded = np.full(width * ranks, np.nan, np.float32)
        padded[: each.size] = each.ravel()
        for rank, part in enumerate(padded.reshape(ranks, width)):
            rows[rank].append(part)
    with TemporaryDirectory() as directory:
        partitions = stored(Path(directory), [np.concatenate(row) for row in rows])
        check(Path(directory), layout_of(drawn, ranks, None), partitions, values)


@pytest.mark.parametrize(
    ("layout", "partitions", "expected"),
    [
        (FlatLayout({"w": (8,)}, (), 2, 4), [None, 4], Range(4, 8, "1", 0)),
        (FlatLayout({"w": (8,)}, (), 2, None), [None, 4], Range(4, 8, "1", 0)),
        (FlatLayout({"a": (1,), "w": (7,)}, (), 1, 8), [4], Range(0, 3, "0", 4)),
        (FlatLayout({"a": (1,), "w": (8,)}, (), 1, None), [4], Range(0, 3, "0", 4)),
    ],
)
def test_a_missing_rank_and_a_short_partition_are_holes(
    layout: FlatLayout, partitions: list[int | None], expected: Range
) -> None:
    files = [
        None if numel is None else FlatPartition(f"{rank}", 0, numel, FLOAT32)
        for rank, numel in enumerate(partitions)
    ]
    assert ranges_of(dict(layout.tensors(FLOAT32, files))["w"]) == [expected]


WHOLE_SHAPES = {"w": (2, 3), "b": (3, 1), "v": (5, 1)}


def over(ranks: int) -> WholeParameters:
    total = sum(map(prod, WHOLE_SHAPES.values()))
    return WholeParameters(FlatLayout(WHOLE_SHAPES, (), ranks, partition_size(total, ranks)))


def test_a_rank_has_all_that_its_partition_touches() -> None:
    assert [[name for name, _, _ in over(2).of_rank(rank)] for rank in (0, 1)] == [
        ["w", "b"],
        ["b", "v"],
    ]
    assert [over(2).numel(rank) for rank in (0, 1)] == [9, 8]
    assert over(1).numel(0) == 14
    assert [over(9).numel(rank) for rank in range(9)] == [6, 6, 6, 3, 8, 5, 5, 0, 0]


def test_what_two_ranks_have_is_replicated() -> None:
    buffers = [FlatPartition(f"rank {rank}", 100, over(2).numel(rank), FLOAT32) for rank in (0, 1)]
    tensors = dict(over(2).tensors(FLOAT32, buffers))
    assert [(chunk.file, chunk.offset) for chunk in tensors["b"].chunks] == [
        ("rank 0", 100 + 6 * 4),
        ("rank 1", 100),
    ]
    assert [chunk.file for chunk in tensors["w"].chunks] == ["rank 0"]
    lost = dict(over(2).tensors(FLOAT32, [None, buffers[1]]))
    assert [len(lost[name].chunks) for name in WHOLE_SHAPES] == [0, 1, 1]


def test_momentum_of_another_optimizer_is_a_partition() -> None:
    assert is_of_muon("momentum_buffer", {"use_muon": True})
    assert not is_of_muon("momentum_buffer", {"momentum": 0.9})
    assert not is_of_muon("momentum_buffer", None)
    assert not is_of_muon("exp_avg", {"use_muon": True})


@pytest.mark.parametrize("ranks", [1, 3, 4, 9, 40])
@pytest.mark.parametrize("offload", [False, True])
def test_any_number_of_ranks_and_back(ranks: int, offload: bool, tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint")
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu" if offload else "none"}}
    settings = ZeroSettings(ds_config={"zero_optimization": zero})
    there = read(
        write(source, lay_out(source, tmp_path / "there", world_size=ranks, settings=settings))
    )
    assert not inspect(there).problems
    assert contents(there) == contents(source)
    back = read(write(there, lay_out(there, tmp_path / "back", world_size=2)))
    assert contents(back) == contents(source)


def test_a_lost_rank_leaves_the_momenta_that_another_has(tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint", tmp_path / "run")
    next((tmp_path / "run").rglob("zero_pp_rank_1_*_optim_states.pt")).unlink()
    found = inspect(read(tmp_path / "run"))
    whole = {key.name for key in found.checkpoint.tensors if key.role == "momentum_buffer"}
    lost = {key.name for key in found.incomplete if key.role == "momentum_buffer"}
    assert whole - lost
    assert lost < whole


def test_momenta_of_neither_length_are_refused(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint")
    write(source, lay_out(source, tmp_path / "three", world_size=3))
    shutil.copytree(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint", tmp_path / "run")
    tag = next((tmp_path / "run").glob("global_step*"))
    three = next((tmp_path / "three").glob("global_step*"))
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(three / name, tag / name)
    with pytest.raises(BadFile, match=r"zero_pp_rank_\d_"):
        inspect(read(tmp_path / "run"))
