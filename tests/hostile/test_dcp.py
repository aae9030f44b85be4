"""DCP directories with flipped bytes and planted commands."""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.dcp.test_golden import RANKS
from tests.io.torchzip.archives import zip_bytes
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Opaque, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.formats.dcp.lay_out_rank_files import (
    DcpEntry,
    KnownTensor,
    PlainValue,
    lay_out_directory,
)
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.formats.dcp.training_state import training_of as training_of_dcp
from zerotools.io.distcp.lay_out_data_file import archive_of
from zerotools.io.distcp.metadata import Item
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes


class Command:
    """Pickles as a shell command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RANKS[1], tmp_path / "ckpt"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".metadata", "__0_0.distcp"]), st.data())
def test_flipped_bytes_give_our_errors_only(copied: Path, name: str, data: st.DataObject) -> None:
    original = (copied / name).read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (copied / name).write_bytes(damaged)
    with suppress(ZerotoolsError):
        checkpoint = read_dcp(copied)
        for tensor in checkpoint.tensors.values():
            for chunk in tensor.chunks:
                end = chunk.offset + chunk.extent(tensor.dtype)
                assert 0 <= chunk.offset <= end <= checkpoint.files[chunk.file]
        dict(checkpoint.state)
    (copied / name).write_bytes(original)


def test_metadata_that_is_a_command(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Command(f"touch {mark}")))
    with pytest.raises(BadFile, match=r"has [a-z]+\.system instead of Metadata"):
        read_dcp(tmp_path)
    assert not mark.exists()


def _with_item(tmp_path: Path, item: bytes, written: WrittenItem) -> Path:
    (tmp_path / "__0_0.distcp").write_bytes(item)
    (tmp_path / ".metadata").write_bytes(metadata_bytes([written], None))
    return tmp_path


def test_a_command_in_place_of_a_tensor_or_a_value(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    item = zip_bytes({"a/data.pkl": pickle.dumps(Command(f"touch {mark}"), 2)})
    place, box = Item("__0_0.distcp", 0, len(item)), Box((0,), (2,))
    tensor = WrittenItem("w", place, dtypes.INT8, (2,), box)
    checkpoint = read_dcp(_with_item(tmp_path, item, tensor))
    with pytest.raises(BadFile, match=r"holds [a-z]+\.system instead of the tensor w"):
        list(checkpoint.tensors[Key("w", "param")].chunks)
    value = read_dcp(_with_item(tmp_path, item, WrittenItem("v", place))).state["v"]
    assert isinstance(value, Opaque)
    assert not mark.exists()


def _saved(directory: Path, values: dict[str, Any]) -> Checkpoint:
    """A DCP of a weight and of values that are not tensors."""
    weight = KnownTensor(Key("w", "param"), Tensor(FLOAT32, (), ()), b"\0\0\0\0")
    entries: dict[str, DcpEntry] = {"model.w": weight}
    entries |= {key: PlainValue(archive_of(value)) for key, value in values.items()}
    for name, plan in lay_out_directory(entries, None, 1).files.items():
        data = bytearray(plan.size)
        for part in plan.literals:
            data[part.offset : part.offset + len(part.data)] = part.data
        directory.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
    return read_dcp(directory)


def test_a_param_group_whose_number_has_no_end(tmp_path: Path) -> None:
    """int() itself refuses texts of more than 4,300 digits."""
    group = f"optimizer.param_groups.{'9' * 5000}"
    values = {f"{group}.params": ["w"], f"{group}.lr": 0.1}
    assert training_of_dcp(_saved(tmp_path / "c", values)).groups == ()


def test_options_that_take_forever_to_compare(tmp_path: Path) -> None:
    """Lists that share their parts: small in the file, and 2 ** 60 elements as a tree."""
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep, deep]
    values = {f"optimizer.param_groups.{name}.lr": deep for name in ("a.w", "b.w")}
    groups = training_of_dcp(_saved(tmp_path / "c", values)).groups
    assert [group.params for group in groups] == [("a.w",), ("b.w",)]
