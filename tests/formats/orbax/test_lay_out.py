"""What is written as Orbax is what TensorStore reads, and what our own reader reads."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.formats.elements import elements
from tests.io.stores.far import put_directory, served
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DTYPES, FLOAT32, dtype_named
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import WriteOptions
from zerotools.formats.orbax.format import OrbaxFormat
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect

Arrays = dict[str, np.ndarray]


def model(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors")
    return folder


def written(source: Path, out: Path, **options: object) -> Checkpoint:
    done = prepare_convert(source, out, "orbax", {"no_check_names": True, **options})
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
    return formats.read(out)


def described(name: str, shape: tuple[int, ...] = (2,), dtype: str = "float32") -> Checkpoint:
    kind = dtype_named(dtype)
    chunk = Chunk(Box.whole(shape), "file", 0)
    tensors = {Key(name, "param"): Tensor(kind, shape, (chunk,))}
    return Checkpoint(Path("/x"), tensors, Origin("safetensors", Path("/x")), files={"file": 2**40})


def lay_out(source: Checkpoint, most: int | None = None) -> None:
    options = WriteOptions(max_shard_bytes=most)
    OrbaxFormat().lay_out(source, TrainingState(), Path("/out"), options)


@pytest.mark.parametrize("most", [1 << 20, 100, 12, 4])
def test_it_is_what_the_source_has_in_chunks_of_any_size(tmp_path: Path, most: int) -> None:
    drawn = np.random.default_rng(3)
    arrays = {
        "a.kernel": drawn.normal(size=(5, 3, 2)).astype("f4"),
        "a.bias": drawn.normal(size=7).astype(ml_dtypes.bfloat16),
        "one": np.array([[4.0]], "f4"),
        "none": np.array(3, "i8"),
    }
    if most == 4:
        del arrays["none"]
    found = written(model(tmp_path / "in", arrays), tmp_path / "out", max_shard_bytes=most)
    assert {key.name for key in found.tensors} == {*arrays}
    for name, array in arrays.items():
        there = elements(found, Key(name, "param"))
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert there.tobytes() == array.tobytes()
    sizes = [size for file, size in found.files.items() if file.startswith("params.params.a")]
    assert max(sizes) <= most


def test_tensorstore_reads_every_type(tmp_path: Path) -> None:
    """TensorStore is what Orbax reads with."""
    tensorstore = pytest.importorskip("tensorstore")
    names = [dtype.name for dtype in DTYPES if dtype.safetensors and "e8m0" not in dtype.name]
    whole = np.arange(35 * 8, dtype="u1").reshape(7, 5, 8) % 2
    arrays = {name: np.ascontiguousarray(whole).view(name)[..., 0] for name in names}
    folder = model(tmp_path / "in", {k: np.ascontiguousarray(v) for k, v in arrays.items()})
    written(folder, tmp_path / "out", max_shard_bytes=48)
    for name, array in arrays.items():
        files = {"driver": "file", "path": f"{tmp_path}/out/params.params.{name}/"}
        found = tensorstore.open({"driver": "zarr", "kvstore": files}).result()
        assert found.dtype.name == name
        assert found.read().result().tobytes() == array.tobytes()


def test_it_is_read_from_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arrays = {"a.w": np.arange(30, dtype="f4").reshape(10, 3), "b": np.ones((), "f4")}
    written(model(tmp_path / "in", arrays), tmp_path / "out", max_shard_bytes=50)
    with served(monkeypatch) as store:
        found = formats.read(put_directory(store, tmp_path / "out", "model"))
        loaded = load_tensors(found, dict.fromkeys(found.tensors, FLOAT32))
    assert {key.name for key in loaded} == {*arrays}
    assert all(np.array_equal(each, arrays[key.name]) for key, each in loaded.items())


def test_it_may_be_an_item_of_a_run(tmp_path: Path) -> None:
    """A CheckpointManager restores RUN/STEP/items."""
    written(model(tmp_path / "in", {"w": np.ones(3, "f4")}), tmp_path / "run" / "7" / "items")
    for place in ("run", "run/7", "run/7/items"):
        assert formats.read(tmp_path / place).origin.step == 7


@pytest.mark.parametrize("name", ["a.w", "b"])
def test_a_lost_file_of_elements_is_a_hole(tmp_path: Path, name: str) -> None:
    arrays = {"a.w": np.arange(30, dtype="f4").reshape(10, 3), "b": np.ones((), "f4")}
    written(model(tmp_path / "in", arrays), tmp_path / "out", max_shard_bytes=50)
    lost = {"a.w": "2.0", "b": "0"}[name]
    (tmp_path / "out" / f"params.params.{name}" / lost).unlink()
    found = inspect(formats.read(tmp_path / "out"))
    said = f"the array params.params.{name} lacks 1 chunk ({lost}, ...)"
    assert said in next(iter(found.problems)).message
    assert found.incomplete == (Key(name, "param"),)


def test_the_tree_has_the_places_of_flax_and_needs_no_sharding(tmp_path: Path) -> None:
    arrays = {"decoder.norm.scale": np.ones(3, "f4")}
    written(model(tmp_path / "in", arrays), tmp_path / "out")
    tree = json.loads((tmp_path / "out" / "_METADATA").read_text())
    path = "('params', 'params', 'decoder', 'norm', 'scale')"
    assert [*tree["tree_metadata"]] == [path]
    entry = tree["tree_metadata"][path]
    assert [each["key"] for each in entry["key_metadata"]] == [*eval_words(path)]
    assert entry["value_metadata"]["value_type"] == "np.ndarray"


def eval_words(path: str) -> list[str]:
    return path.strip("()").replace("'", "").split(", ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a..b", "empty part"),
        ("a/../b", "leads out of the directory"),
        ("a\0b", "leads out of the directory"),
        ("a/", "leads out of the directory"),
        ("x" * 250, "has 250 characters, and Orbax makes it the name of a directory"),
        ("params.w", r"params\.w would be read from an Orbax tree under the name w,"),
        ("a.value", r"a\.value would be read from an Orbax tree under the name a,"),
    ],
)
def test_a_name_that_the_tree_cannot_have_is_refused(name: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        lay_out(described(name))


@pytest.mark.parametrize(("outer", "inner"), [("a.b", "a.b.c"), ("a", "a/b")])
def test_a_tensor_below_another_is_refused(outer: str, inner: str) -> None:
    one, two = described(outer), described(inner)
    one.tensors.update(two.tensors)  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match=f"{outer} is a tensor, so {inner} cannot lie below it"):
        lay_out(one)


def test_an_array_without_elements_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"a has shape \[2, 0\], and Orbax does not store"):
        lay_out(described("a", (2, 0)))


def test_a_type_that_tensorstore_lacks_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"a is float8_e8m0fnu, which TensorStore cannot store"):
        lay_out(described("a", dtype="float8_e8m0fnu"))


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (1, "an element of params.params.a has 4 bytes, but a file may have only 1 bytes"),
        (64, "needs 250000 files of 64 bytes, but zerotools writes at most 100000 files"),
    ],
)
def test_a_size_of_files_that_is_too_small_is_refused(most: int, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        lay_out(described("a", (1000, 1000, 4)), most)


def test_chunks_are_as_large_as_one_may_be(tmp_path: Path) -> None:
    """A large array takes few files, and all are alike but for the last."""
    shape = (1000, 80, 4096)
    target = OrbaxFormat().lay_out(
        described("a", shape), TrainingState(), tmp_path / "out", WriteOptions()
    )
    (tensor,) = target.checkpoint.tensors.values()
    rows = [chunk.box.shape[0] for chunk in tensor.chunks]
    assert (len(rows), {*rows[:-1]}) == (5, {200})
    assert max(rows) * 80 * 4096 * FLOAT32.itemsize <= 2**28
