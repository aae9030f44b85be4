"""Damaged DCP directories: each fault is one sentence that names the file and the tensor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import tensor_bytes
from tests.formats.dcp.test_golden import RANKS
from tests.golden_files import JOB
from tests.io.torchzip.archives import archive_bytes
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.distcp.metadata import Item, read_metadata
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.unpickle import loads
from zerotools.ops.inspection.inspect import inspect


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RANKS[3], tmp_path / "ckpt"))


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes of the Metadata in a `.metadata`."""
    tree = loads(path.read_bytes(), source=path)
    change(tree.state)
    path.write_bytes(dumps(tree))


def test_a_missing_data_file_is_a_problem_and_its_chunks_a_hole(copied: Path) -> None:
    (copied / "__1_0.distcp").unlink()
    checkpoint = read_dcp(copied)
    (problem,) = checkpoint.problems
    assert problem.file == "__1_0.distcp"
    assert [chunk.file for chunk in checkpoint.tensors[Key("scale", "param")].chunks] == [
        "__0_0.distcp",
        "__2_0.distcp",
    ]


def test_a_short_data_file_is_a_problem_with_both_sizes(copied: Path) -> None:
    os.truncate(copied / "__1_0.distcp", 5000)
    checkpoint = read_dcp(copied)
    (problem,) = checkpoint.problems
    assert "has 5000 bytes" in problem.message
    assert "ends at byte 41710" in problem.message
    held = [chunk for tensor in checkpoint.tensors.values() for chunk in tensor.chunks]
    assert max(chunk.offset for chunk in held if chunk.file == "__1_0.distcp") < 5000
    assert len(inspect(checkpoint).incomplete) > 0


def test_rank_metadata_is_united_where_there_is_no_global_one(copied: Path) -> None:
    whole = read_dcp(copied)
    tree = (copied / ".metadata").read_bytes()
    for rank in range(3):

        def only(state: dict[str, Any], rank: int = rank) -> None:
            stored = state["storage_data"]
            mine = {
                index: info
                for index, info in stored.items()
                if info.state["relative_path"].startswith(f"__{rank}_")
            }
            held = {(index.state["fqn"], index.state.get("offset")) for index in mine}
            for key, entry in list(state["state_dict_metadata"].items()):
                if entry.state is None:
                    if (key, None) not in held:
                        del state["state_dict_metadata"][key]
                    continue
                chunks = entry.state["chunks"]
                chunks[:] = [c for c in chunks if (key, c.state["offsets"]) in held]
            state["storage_data"] = mine

        path = copied / f"__{rank}.metadata"
        path.write_bytes(tree)
        _edit(path, only)
    (copied / ".metadata").unlink()
    united = read_dcp(copied)
    assert united.tensors.keys() == whole.tensors.keys()
    for key in whole.tensors:
        assert tensor_bytes(united, key) == tensor_bytes(whole, key)
    assert dict(united.state) == dict(whole.state)


@pytest.mark.parametrize("size", [0, 1, 100, 5000, 12816])
def test_a_truncated_metadata(copied: Path, size: int) -> None:
    os.truncate(copied / ".metadata", size)
    with pytest.raises(BadFile, match=r"\.metadata: its pickle"):
        read_dcp(copied)


def test_no_metadata_and_no_directory(copied: Path) -> None:
    (copied / ".metadata").unlink()
    with pytest.raises(BadFile, match="not finished"):
        read_dcp(copied)
    with pytest.raises(BadRequest, match="not a directory"):
        read_dcp(copied / "nothing")


def _info(state: dict[str, Any], **values: Any) -> None:
    next(iter(state["storage_data"].values())).state.update(values)


def _chunk(state: dict[str, Any], **values: Any) -> None:
    state["state_dict_metadata"]["model.scale"].state["chunks"][1].state.update(values)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = {
    "a name that leaves the directory": (
        lambda s: _info(s, relative_path="../../etc/passwd"), BadFile, "not below the checkpoint"),
    "an absolute name": (
        lambda s: _info(s, relative_path="/etc/passwd"), BadFile, "not below the checkpoint"),
    "a negative offset": (lambda s: _info(s, offset=-1), BadFile, "sizes or offsets of"),
    "a length that is text": (lambda s: _info(s, length="1"), BadFile, "sizes or offsets of"),
    "transformed items": (
        lambda s: _info(s, transform_descriptors=["stream.zstd/1"]), Unsupported, "zstd"),
    "items of bare length": (lambda s: _info(s, length=400), Unsupported, "SAFETENSORS"),
    "a chunk outside its tensor": (
        lambda s: _chunk(s, offsets=(90, 0)), BadFile, "outside of this shape"),
    "a chunk of other dimensions": (
        lambda s: _chunk(s, offsets=(34,), sizes=(34,)), BadFile, "1 dimensions"),
    "a chunk that is stored nowhere": (
        lambda s: _chunk(s, offsets=(33, 0)), BadFile, "does not say where the chunk at"),
    "a chunk of text": (lambda s: _chunk(s, sizes=("a", 3)), BadFile, "sizes or offsets of "
    "model.scale"),
    "no storage": (lambda s: s.update(storage_data=None), BadFile, "storage_data"),
    "entries of another class": (
        lambda s: s["state_dict_metadata"].update(x=Opaque("m", "Odd")), BadFile, "instead of"),
    "an unknown element type": (
        lambda s: s["state_dict_metadata"]["model.scale"].state.update(properties=None),
        Unsupported, "model.scale"),
    "odd paths": (lambda s: s.update(planner_data={"a": (1.5,)}), BadFile, "path"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_metadata_that_says_what_cannot_be(
    copied: Path,
    change: Callable[[dict[str, Any]], object],
    error: type[Exception],
    said: str,
) -> None:
    _edit(copied / ".metadata", change)
    with pytest.raises(error, match=said) as caught:
        read_dcp(copied)
    assert str(copied) in str(caught.value)


def _one_item(tmp_path: Path, tensor: Any, data: bytes, dtype: str, shape: tuple[int, ...]) -> Path:
    """A checkpoint of the one tensor `w`, whose metadata may disagree with its item."""
    item = archive_bytes(tensor, [data])
    (tmp_path / "__0_0.distcp").write_bytes(item)
    written = WrittenItem(
        "w", Item("__0_0.distcp", 0, len(item)), dtypes.dtype_named(dtype), shape, Box.whole(shape)
    )
    (tmp_path / ".metadata").write_bytes(metadata_bytes([written], None))
    return tmp_path


def _stored(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> StoredTensor:
    return StoredTensor(Storage("0", dtypes.INT32, 8), dtypes.INT32, offset, shape, strides)


@pytest.mark.parametrize(
    ("tensor", "dtype", "shape", "said"),
    [
        (_stored((2, 4), (4, 1)), "int32", (4, 2), r"shape \(2, 4\).*shape \(4, 2\)"),
        (_stored((2, 4), (4, 1)), "float32", (2, 4), "holds int32.*has float32"),
        (_stored((2, 4), (0, 1)), "int32", (2, 4), "stride of 0"),
        ({"w": 1}, "int32", (2, 4), "holds dict"),
    ],
)
def test_an_item_that_disagrees_with_the_metadata(
    tmp_path: Path, tensor: Any, dtype: str, shape: tuple[int, ...], said: str
) -> None:
    checkpoint = read_dcp(_one_item(tmp_path, tensor, bytes(32), dtype, shape))
    with pytest.raises(BadFile, match=said):
        list(checkpoint.tensors[Key("w", "param")].chunks)


def test_a_tensor_larger_than_its_storage(tmp_path: Path) -> None:
    tensor = _stored((2, 4), (4, 1), offset=1)
    checkpoint = read_dcp(_one_item(tmp_path, tensor, bytes(32), "int32", (2, 4)))
    with pytest.raises(BadFile, match="needs 36 bytes, but its storage '0' has 32"):
        list(checkpoint.tensors[Key("w", "param")].chunks)


def test_a_transposed_tensor_has_strides(tmp_path: Path) -> None:
    checkpoint = read_dcp(_one_item(tmp_path, _stored((2, 4), (1, 2)), bytes(32), "int32", (2, 4)))
    (chunk,) = checkpoint.tensors[Key("w", "param")].chunks
    assert chunk.strides == (1, 2)


def test_the_written_metadata_is_read_back(tmp_path: Path) -> None:
    box = Box((1, 0), (1, 2))
    written = [
        WrittenItem("a", Item("x", 0, 500), dtypes.BFLOAT16, (2, 2), Box((0, 0), (1, 2))),
        WrittenItem("a", Item("y", 7, 600), dtypes.BFLOAT16, (2, 2), box),
        WrittenItem("b", Item("y", 607, 9)),
    ]
    path = tmp_path / ".metadata"
    path.write_bytes(metadata_bytes(written, {"a": ("a",), "b": ("b", 0)}))
    read = read_metadata(path)
    assert read.tensors["a"].parts[1] == (box, Item("y", 7, 600))
    assert read.tensors["a"].dtype == dtypes.BFLOAT16
    assert read.blobs == {"b": Item("y", 607, 9)}
    assert read.paths == {"a": ("a",), "b": ("b", 0)}


def test_a_job_without_its_record_is_not_another_programs(tmp_path: Path) -> None:
    """Its adapters would be exported beside its weights, and tied names would be lost."""
    path = tmp_path / "step-00000003"
    shutil.copytree(JOB, path)
    (path / "job.json").unlink()
    with pytest.raises(BadFile, match=r"job\.json is missing, but MANIFEST\.json lists it"):
        read_dcp(path)
    with tolerating_damage() as damage:
        assert read_dcp(path).tensors
    assert [*damage.unnamed] == [path / "job.json"]
    (path / "MANIFEST.json").unlink()  # then nothing tells that a job saved it
    assert read_dcp(path).tensors
