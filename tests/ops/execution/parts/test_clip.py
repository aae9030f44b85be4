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
from zerotools.core.checkpoint import Key
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, ZeroBytes
from zerotools.ops.execution.parts.clip import clip_plan
from zerotools.ops.execution.parts.execute_part import execute_part
from zerotools.ops.execution.parts.share import ByteRange, OutputPart, plan_part

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
            report = execute_part(planned, source, output, {"all": "1"}, budget=SMALL)
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
