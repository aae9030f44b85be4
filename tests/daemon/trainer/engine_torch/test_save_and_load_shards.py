"""The copy of a rank's state on the host, from a GPU that is simulated."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerotools.core.errors import ZerotoolsError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("locks", [True, False])
def test_what_comes_from_a_gpu_goes_to_locked_memory_where_there_is_some(locks: bool) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from zerotoolsd.trainer.allocate_tensors import LockFailed
    from zerotoolsd.trainer.engine_torch.save_and_load_shards import HostCopy

    asked = list[Any]()

    def empty(shape: Any, dtype: Any) -> Any:
        asked.append((tuple(shape), dtype))
        if not locks:
            raise LockFailed(2)
        return torch.full(shape, 7, dtype=dtype)

    arena: Any = SimpleNamespace(empty=empty)
    with FakeTensorMode():
        weight = torch.empty(4, 2, dtype=torch.bfloat16, device="cuda")
    buffer = HostCopy(arena)._buffer_for(weight)
    assert asked == [((4, 2), torch.bfloat16)]
    assert (buffer.shape, buffer.dtype, buffer.device.type) == (weight.shape, weight.dtype, "cpu")
    assert not locks or bool((buffer == 7).all())


def test_the_copy_is_complete_before_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.save_and_load_shards import HostCopy

    done = list[str]()
    stream = SimpleNamespace(synchronize=lambda: done.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    weight = torch.arange(3.0)
    copied = HostCopy().copy({"model": {"weight": weight}})["model"]["weight"]
    assert done == ["synchronized"]
    weight.zero_()
    assert copied.tolist() == [0.0, 1.0, 2.0]


pytestmark = pytest.mark.torch


class Payload:
    """Unpickles by making a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def save(directory: Path) -> None:
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    tensors = {"w": torch.arange(12.0).reshape(3, 4), "step": torch.tensor(3.0)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # of torch 2.8
        dcp.save({"model": tensors, "note": "hello"}, checkpoint_id=directory, no_dist=True)


def test_torch_gets_the_same_metadata_as_from_its_own_reader(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    from zerotoolsd.trainer.engine_torch.save_and_load_shards import CheckedReader

    save(tmp_path)
    ours = CheckedReader(tmp_path).read_metadata()
    theirs = dcp.FileSystemReader(tmp_path).read_metadata()
    assert set(theirs.state_dict_metadata) - set(ours.state_dict_metadata) == {"note"}
    for key, entry in ours.state_dict_metadata.items():
        other = theirs.state_dict_metadata[key]
        assert (entry.size, entry.chunks) == (other.size, other.chunks)
        assert entry.properties.dtype == other.properties.dtype
    for index, place in ours.storage_data.items():
        assert place == theirs.storage_data[index]
    assert ours.planner_data == theirs.planner_data
    assert getattr(ours, "version", None) == getattr(theirs, "version", None)


def test_metadata_of_torch_2_8_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import dataclass

    from torch.distributed.checkpoint import metadata as of_torch

    from zerotoolsd.trainer.engine_torch.save_and_load_shards import CheckedReader

    @dataclass
    class Metadata:
        state_dict_metadata: dict[str, Any]
        planner_data: Any = None
        storage_data: Any = None
        storage_meta: Any = None

    save(tmp_path)
    monkeypatch.setattr(of_torch, "Metadata", Metadata)
    assert set(CheckedReader(tmp_path).read_metadata().state_dict_metadata) == {
        "model.w",
        "model.step",
    }


@pytest.mark.parametrize("place", ["top", "planner_data"])
def test_nothing_in_the_metadata_runs(tmp_path: Path, place: str) -> None:
    import torch.distributed.checkpoint as dcp

    from zerotoolsd.trainer.engine_torch.save_and_load_shards import CheckedReader

    save(tmp_path)
    marker = tmp_path / "it ran"
    content: object = Payload(marker)
    if place == "planner_data":
        content = dcp.FileSystemReader(tmp_path).read_metadata()
        content.planner_data = {"model.w": Payload(marker)}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
    with suppress(ZerotoolsError):  # refused, or read without it: either will do
        CheckedReader(tmp_path).read_metadata()
    assert not marker.exists()
