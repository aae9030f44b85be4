"""Views of checkpoints whose chunks lie anywhere, planned and copied as any other tensors."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layouts import layouts, store
from tests.maps.viewed import made_views, numbered
from tests.matrices import examples
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest, Incomplete, Unsupported
from zerotools.core.quantisation_schemes import BlockScaled
from zerotools.core.scaled_cast import ScaledCast
from zerotools.maps.views import (
    TensorView,
    View,
    concatenated,
    inverse_pieces,
    padded_view,
    whole_view,
)
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.plan_copies import prove_source
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.weights.rearrange_tensors import rearranged_checkpoint

SMALL = MemoryBudget(3 * MIN_TILE_BYTES, 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_view_of_any_chunks_is_what_numpy_makes_and_maps_back(data: st.DataObject) -> None:
    view, shapes, array = data.draw(made_views())
    arrays = [each.astype("f4") for each in numbered(*shapes)]
    names = tuple(f"t{number}" for number in range(len(arrays)))
    with tempfile.TemporaryDirectory() as folder:
        source = stored(data, Path(folder), dict(zip(names, arrays, strict=True)))
        made = rearranged_checkpoint(source, {"all": TensorView(view, names)})
        assert (loaded(made, "all") == array).all()
        back = {
            name: TensorView(View(shape, pieces), ("all",))
            for name, shape, pieces in zip(
                names, shapes, inverse_pieces(view, [2] * len(shapes)), strict=True
            )
        }
        again = rearranged_checkpoint(made, back)
        for name, wanted in zip(names, arrays, strict=True):
            assert loaded(again, name).tobytes() == wanted.tobytes()


def stored(data: st.DataObject, root: Path, arrays: dict[str, np.ndarray]) -> Checkpoint:
    """Each array in files of its own, cut, ordered and repeated in any way."""
    return store(
        root,
        {
            Key(name, "param"): (array, dtypes.FLOAT32, data.draw(layouts(array.shape)))
            for name, array in arrays.items()
        },
    )


def loaded(checkpoint: Checkpoint, name: str) -> np.ndarray:
    key = Key(name, "param")
    return load_tensors(checkpoint, {key: checkpoint.tensors[key].dtype}, SMALL)[key]


def written(root: Path, rows: dict[tuple[str, str], int], dtype: DType = dtypes.FLOAT32):
    """Tensors of so many rows of two, one behind another."""
    data, tensors = b"", {}
    for (name, role), count in rows.items():
        chunk = Chunk(Box.whole((count, 2)), "data", len(data))
        tensors[Key(name, role)] = Tensor(dtype, (count, 2), (chunk,))
        data += np.arange(count * 2, dtype="f4").tobytes()
    (root / "data").write_bytes(data)
    return Checkpoint(root, tensors, Origin("toy", root), files={"data": len(data)})


BOTH = TensorView(concatenated([whole_view(0, (2, 2)), whole_view(1, (1, 2))], 0), ("a", "b"))


def test_every_role_is_moved_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    rows = {(n, r): c for r in ("param", "exp_avg") for n, c in (("a", 2), ("b", 1))}
    made = rearranged_checkpoint(
        written(tmp_path, rows), {"both": BOTH, "other": TensorView(BOTH.view, "cd")}
    )
    assert set(made.tensors) == {Key("both", "param"), Key("both", "exp_avg")}
    assert loaded(made, "both").tolist() == [[0, 1], [2, 3], [0, 1]]


def test_rows_that_are_repeated_are_read_as_often(tmp_path: Path) -> None:
    source = written(tmp_path, {("a", "param"): 3})
    made = rearranged_checkpoint(
        source, {"a": TensorView(padded_view(whole_view(0, (3, 2)), 6), ("a",))}
    )
    assert loaded(made, "a").tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5], [4, 5]]


def test_parts_without_their_state_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path, {("a", "param"): 2, ("b", "param"): 1, ("a", "exp_avg"): 2})
    with pytest.raises(BadRequest, match=r"a \(exp_avg\) and b are parts of both, but b has no"):
        rearranged_checkpoint(source, {"both": BOTH})


def test_parts_of_different_types_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path, {("a", "param"): 2, ("b", "param"): 1})
    tensors = dict(source.tensors)
    tensors[Key("b", "param")] = Tensor(dtypes.BFLOAT16, (1, 2), ())
    mixed = Checkpoint(source.root, tensors, source.origin, files=source.files)
    with pytest.raises(Unsupported, match=r"a is float32 but b is bfloat16.*consolidate --dtype"):
        rearranged_checkpoint(mixed, {"both": BOTH})


def test_a_hole_of_the_source_is_a_hole_of_the_view(tmp_path: Path) -> None:
    source = written(tmp_path, {("a", "param"): 2, ("b", "param"): 1})
    tensors = dict(source.tensors)
    tensors[Key("b", "param")] = Tensor(dtypes.FLOAT32, (1, 2), ())
    holed = Checkpoint(source.root, tensors, source.origin, files=source.files)
    made = rearranged_checkpoint(holed, {"both": BOTH})
    with pytest.raises(Incomplete, match="both is incomplete: 2 of 6 elements"):
        prove_source(Key("both", "param"), made.tensors[Key("both", "param")], made)


def test_a_computed_tensor_gets_another_name_and_is_no_part_of_another(tmp_path: Path) -> None:
    source = written(tmp_path, {("a", "param"): 2, ("b", "param"): 1})
    tensors = dict(source.tensors)
    scheme = BlockScaled((1, 1), (2, 2))
    computed = ScaledCast(
        dtypes.FLOAT32, (2, 2), (), scheme, {"payload": tensors[Key("a", "param")]}
    )
    tensors[Key("a", "param")] = computed
    quantised = Checkpoint(source.root, tensors, source.origin, files=source.files)
    renamed = rearranged_checkpoint(quantised, {"new": TensorView(whole_view(0, (2, 2)), ("a",))})
    assert renamed.tensors[Key("new", "param")] is computed
    with pytest.raises(Unsupported, match="a is a quantised part of both"):
        rearranged_checkpoint(quantised, {"both": BOTH})
