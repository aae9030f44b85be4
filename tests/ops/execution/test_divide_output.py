"""The shares of all runs are the whole output, each byte of it once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layouts import layouts, load, shapes, store, target
from tests.matrices import examples
from tests.ops.execution.test_any_layout import SMALL, values_of
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, Target, ZeroBytes
from zerotools.ops.execution.divide_output import (
    ALIGNMENT,
    ByteRange,
    Extent,
    clip_plan,
    divide_output,
    plan_part,
)
from zerotools.ops.execution.execute import Transfer
from zerotools.ops.execution.execute_part import execute_part
from zerotools.ops.execution.output_part import OutputPart

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
    found = divide_output(target, of, alignment=16)
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
    assert divide_output(target, 3) == [
        {"a": ByteRange(0, 4000 * MIB)},
        {"a": ByteRange(4000 * MIB, 5000 * MIB), "b": ByteRange(0, 3000 * MIB)},
        {"b": ByteRange(3000 * MIB, 5000 * MIB), "c": ByteRange(0, 2000 * MIB)},
    ]
    near = target_of({"a": 5000 * MIB, "b": 5001 * MIB})
    assert divide_output(near, 2) == [
        {"a": ByteRange(0, 5000 * MIB)},
        {"b": ByteRange(0, 5001 * MIB)},
    ]
    assert ALIGNMENT == MIB


def test_more_runs_than_there_is_work_for_have_none() -> None:
    found = divide_output(target_of({"a": MIB, "b": 0}), 4)
    assert [len(share) for share in found].count(0) >= 2
    assert {name for share in found for name in share} == {"a", "b"}


def test_an_element_belongs_to_the_range_of_its_first_byte() -> None:
    extent = Extent("a", offset=6, numel=4, itemsize=4)
    assert extent.inside(ByteRange(0, 6)) == (0, 0)
    assert extent.inside(ByteRange(0, 7)) == (0, 1)
    assert extent.inside(ByteRange(7, 15)) == (1, 3)
    assert extent.inside(ByteRange(15, 99)) == (3, 4)


KEY = Key("w", "param")


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_parts_together_write_the_same_bytes(data: st.DataObject) -> None:
    """Of any layout into any layout, cut anywhere, in any order of parts."""
    shape, of = data.draw(shapes), data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from((dtypes.FLOAT32, dtypes.BFLOAT16, dtypes.UINT8)))
    values = values_of(shape, dtypes.FLOAT32, data.draw(st.integers(0, 9)))
    order = data.draw(st.permutations(range(1, of + 1)))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        source = store(root / "in", {KEY: (values, dtypes.FLOAT32, data.draw(layouts(shape)))})
        wanted = data.draw(layouts(shape, contiguous=True))
        output = target(root / "out", {KEY: (shape, dtype, wanted)})
        written = 0
        for index in order:
            planned = plan_part(output, OutputPart(index, of), alignment=16)
            report = execute_part(
                planned, source, output, {"all": "1"}, transfer=Transfer(budget=SMALL)
            )
            written += report.bytes_written
            assert output.checkpoint.root.exists() == (not report.missing)
        assert not report.missing
        arrived = load(output.checkpoint, KEY)
        assert written == arrived.nbytes
    assert arrived.astype(np.float32).tobytes() == values.tobytes()


def test_what_a_file_has_beside_tensors_is_cut_where_the_file_is() -> None:
    plan = FilePlan(
        100,
        literals=[LiteralBytes(0, b"abcdef"), LiteralBytes(40, b"ghij")],
        carried=[CarriedBytes(50, Path("/x"), 1000, 30)],
        checksums=[Checksum(0, 50, (90,))],
        zeros=[ZeroBytes(95, 5)],
    )
    assert clip_plan(plan, ByteRange(0, 100)) is plan
    first, second = clip_plan(plan, ByteRange(0, 42)), clip_plan(plan, ByteRange(42, 60))
    assert first == FilePlan(100, [LiteralBytes(0, b"abcdef"), LiteralBytes(40, b"gh")], [])
    assert second == FilePlan(
        100, [LiteralBytes(42, b"ij")], [CarriedBytes(50, Path("/x"), 1000, 10)]
    )
