"""Two layouts of one tensor give the same elements, block by block."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layouts import Placement, layouts, shapes, store
from tests.matrices import examples
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, BOOL, FLOAT32, INT64, DType
from zerotools.core.errors import Incomplete
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.comparison.read_two_tensors import LocatedTensor, TwoTensors

KEY = Key("w", "param")


def numbered(shape: tuple[int, ...], dtype: DType) -> Array:
    count = int(np.prod(shape, dtype=int))
    return (np.arange(count) % 127).reshape(shape).astype(numpy_dtype(dtype))


@settings(max_examples=examples(50))
@given(st.data(), shapes, st.integers(64, 300))
def test_any_two_layouts(data: st.DataObject, shape: tuple[int, ...], room: int) -> None:
    types = [data.draw(st.sampled_from([FLOAT32, BFLOAT16, INT64, BOOL])) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        kept = []
        for name, dtype in zip("ab", types, strict=True):
            root = Path(folder, name)
            placements = data.draw(layouts(shape))
            kept.append(store(root, {KEY: (numbered(shape, dtype), dtype, placements)}))
        two = TwoTensors(*(LocatedTensor(each, KEY) for each in kept))
        scratch = Scratch(room, 64, 4096)
        found: list[list[Array]] = [[], []]
        end = 0
        with OpenFiles(kept[0].root) as a, OpenFiles(kept[1].root) as b:
            for block in two.blocks(room, room):
                assert block.begin == end
                assert (block.end - block.begin) * two.itemsize <= room
                end = block.end
                with a.holding() as ours, b.holding() as theirs:
                    parts = two.read(ours, theirs, block, scratch)
                for own, part, dtype in zip(found, parts, types, strict=True):
                    own.append(part.view(numpy_dtype(dtype)).copy())
        assert end == int(np.prod(shape, dtype=int))
        for own, dtype in zip(found, types, strict=True):
            assert np.array_equal(np.concatenate(own), numbered(shape, dtype).reshape(-1))


def test_an_empty_tensor_has_no_blocks_and_a_scalar_one(tmp_path: Path) -> None:
    for shape, count in (((0, 4), 0), ((), 1)):
        place = [Placement(Box.whole(shape), "x", 0, tuple(range(len(shape))))]
        kept = store(tmp_path / str(count), {KEY: (numbered(shape, FLOAT32), FLOAT32, place)})
        located = LocatedTensor(kept, KEY)
        assert len(list(TwoTensors(located, located).blocks(1024, 1024))) == count


def test_a_tensor_with_a_hole_is_refused(tmp_path: Path) -> None:
    place = [Placement(Box((0, 0), (2, 4)), "x", 0, (0, 1))]
    kept = store(tmp_path, {KEY: (numbered((3, 4), FLOAT32), FLOAT32, place)})
    with pytest.raises(Incomplete, match="4 of 12 elements are in no file"):
        LocatedTensor(kept, KEY)
