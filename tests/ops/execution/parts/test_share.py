"""The shares of all runs are the whole output, each byte of it once."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.target import FilePlan, Target
from zerotools.ops.execution.parts.share import (
    ALIGNMENT,
    ByteRange,
    Extent,
    OutputPart,
    plan_part,
    shares,
)

MIB = 2**20


def target_of(sizes: dict[str, int], *, offset: int = 0) -> Target:
    """Each file holds one fp32 tensor, from `offset` on."""
    tensors = {
        Key(name, "param"): Tensor(
            dtypes.FLOAT32,
            (size // 4,),
            [Chunk(Box((0,), (size // 4,)), name, offset)],
        )
        for name, size in sizes.items()
    }
    root = Path("/out")
    checkpoint = Checkpoint(
        root=root,
        origin=Origin(format="x", path=root, tag=None, world_size=1),
        tensors=tensors,
        files={name: size + offset for name, size in sizes.items()},
    )
    return Target(checkpoint, {name: FilePlan(size + offset) for name, size in sizes.items()})


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 5))
def test_each_byte_is_in_one_share(sizes: list[int], of: int, offset: int) -> None:
    target = target_of({f"f{n}": 4 * size for n, size in enumerate(sizes)}, offset=offset)
    found = shares(target, of, alignment=16)
    assert len(found) == of
    for name, plan in target.files.items():
        ranges = [share[name] for share in found if name in share]
        assert [ranges[0].begin, ranges[-1].end] == [0, plan.size]
        assert [a.end for a in ranges[:-1]] == [b.begin for b in ranges[1:]]
        assert all(bounds.begin % 16 == 0 for bounds in ranges)
        assert len(ranges) == 1 or offset % 4 == 0, "an element would be cut"
    every = [plan_part(target, OutputPart(n + 1, of), alignment=16) for n in range(of)]
    assert sum(each.nbytes for each in every) == sum(plan.size for plan in target.files.values())
    for name, size in ((f"f{n}", 4 * size) for n, size in enumerate(sizes)):
        assert sum(each.tensor_bytes.get(name, 0) for each in every) == size
    assert {key for each in every for key in each.tensors} == {
        key for key, tensor in target.checkpoint.tensors.items() if tensor.numel
    }


def test_shares_are_equal_and_files_are_cut_where_that_helps() -> None:
    target = target_of({"a": 5000 * MIB, "b": 5000 * MIB, "c": 2000 * MIB})
    assert shares(target, 3) == [
        {"a": ByteRange(0, 4000 * MIB)},
        {"a": ByteRange(4000 * MIB, 5000 * MIB), "b": ByteRange(0, 3000 * MIB)},
        {"b": ByteRange(3000 * MIB, 5000 * MIB), "c": ByteRange(0, 2000 * MIB)},
    ]
    near = target_of({"a": 5000 * MIB, "b": 5001 * MIB})
    assert shares(near, 2) == [{"a": ByteRange(0, 5000 * MIB)}, {"b": ByteRange(0, 5001 * MIB)}]
    assert ALIGNMENT == MIB


def test_more_runs_than_there_is_work_for_have_none() -> None:
    found = shares(target_of({"a": MIB, "b": 0}), 4)
    assert [len(share) for share in found].count(0) >= 2
    assert {name for share in found for name in share} == {"a", "b"}


def test_an_element_belongs_to_the_range_of_its_first_byte() -> None:
    extent = Extent("a", offset=6, numel=4, itemsize=4)
    assert extent.inside(ByteRange(0, 6)) == (0, 0)
    assert extent.inside(ByteRange(0, 7)) == (0, 1)
    assert extent.inside(ByteRange(7, 15)) == (1, 3)
    assert extent.inside(ByteRange(15, 99)) == (3, 4)
