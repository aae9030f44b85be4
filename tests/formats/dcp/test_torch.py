"""torch's own DCP on the other side: it loads what we write, we read what it saves."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import forked
from tests.formats.copying import write
from zerotools.core import dtypes
from zerotools.core.checkpoint import Key
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.distcp.metadata import read_metadata
from zerotools.io.numeric.dtype_casts import numpy_dtype

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]
DEADLINE_SECONDS = 240.0
SCRIPT = Path(__file__).with_name("save_with_torch.py")


def _run(what: str, directory: Path, ranks: int) -> None:
    """Run the script as `ranks` gloo processes."""
    with tempfile.TemporaryDirectory() as meeting:
        logs = [Path(meeting) / f"log-{rank}" for rank in range(ranks)]
        started = []
        for rank, log in enumerate(logs):
            arguments = ["-P", *map(str, (SCRIPT, what, directory, rank, ranks, meeting))]
            with log.open("wb") as out:
                started.append(
                    forked.start(
                        forked.TORCH, arguments, cwd=Path.cwd(), env=dict(os.environ), out=out
                    )
                )
        statuses = [process.wait(DEADLINE_SECONDS) for process in started]
        assert statuses == [0] * ranks, "\n".join(log.read_text() for log in logs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    root = tmp_path_factory.mktemp("saved")

    def at(ranks: int) -> Path:
        path = root / str(ranks)
        if not path.exists():
            _run("save", path, ranks)
        return path

    return at


def _load_everything(path: Path) -> dict[str, Any]:
    """All values by flat key, as torch's offline loader gives them."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    loaded: dict[str, Any] = {}
    _load_state_dict(
        loaded,
        storage_reader=FileSystemReader(path),
        planner=_EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    return loaded


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_what_is_laid_out_is_what_torch_would_have_saved_and_loads(
    tmp_path: Path, saved: Callable[[int], Path], before: int, after: int
) -> None:
    source = read_dcp(saved(before))
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=after))
    _run("load", out, after)
    ours = pickle.loads((out / ".metadata").read_bytes())
    torchs = pickle.loads((saved(after) / ".metadata").read_bytes())
    assert ours.state_dict_metadata == torchs.state_dict_metadata
    assert list(ours.state_dict_metadata) == list(torchs.state_dict_metadata)
    assert ours.planner_data == torchs.planner_data
    assert {index: info.relative_path for index, info in ours.storage_data.items()} == {
        index: info.relative_path for index, info in torchs.storage_data.items()
    }


def test_torch_loads_it_at_another_world_size_too(
    tmp_path: Path, saved: Callable[[int], Path]
) -> None:
    source = read_dcp(saved(2))
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=5))
    _run("load", out, 2)


def _odd_tensors() -> dict[str, Any]:
    import torch

    tensors = {
        f"kind.{dtype.name}": torch.arange(6).reshape(2, 3).to(getattr(torch, dtype.name))
        for dtype in dtypes.DTYPES
        if dtype.name != "float8_e8m0fnu"
    }
    tensors["transposed"] = torch.arange(12.0).reshape(3, 4).t()
    tensors["channels_last"] = (
        torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    )
    tensors["a view"] = torch.arange(100)[10:20:3]
    tensors["number"] = torch.tensor(3.5)
    tensors["empty"] = torch.empty(0, 3)
    return tensors


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    import torch.distributed.checkpoint as torch_dcp

    path = tmp_path / "odd"
    torch_dcp.save({"nested": _odd_tensors(), "plain": {"n": 1}}, checkpoint_id=path, no_dist=True)
    return path


def test_every_element_type_and_memory_order(tmp_path: Path, odd: Path) -> None:
    """Read by us element by element through numpy, then written at 2 ranks and loaded by torch."""
    import numpy as np
    import torch

    checkpoint = read_dcp(odd)
    wanted = _odd_tensors()
    for name, tensor in wanted.items():
        found = checkpoint.tensors[Key(name, "param")]
        assert found.shape == tuple(tensor.shape)
        for chunk in found.chunks:
            kind = numpy_dtype(found.dtype)
            data = checkpoint.path_of(chunk).read_bytes()
            strides = chunk.strides and tuple(s * kind.itemsize for s in chunk.strides)
            array: Any = np.ndarray(chunk.box.shape, kind, data, chunk.offset, strides)
            raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            assert np.ascontiguousarray(array).tobytes() == raw.tobytes(), name
    out = write(checkpoint, lay_out_dcp(checkpoint, tmp_path / "out", world_size=2))
    loaded = _load_everything(out)
    assert loaded["plain"] == {"n": 1}
    for name, tensor in wanted.items():
        assert loaded["nested"][name].dtype == tensor.dtype
        raw = loaded["nested"][name].reshape(-1).view(torch.uint8)
        assert torch.equal(raw, tensor.contiguous().reshape(-1).view(torch.uint8)), name


def test_every_record_has_its_crc(tmp_path: Path, odd: Path) -> None:
    import io
    import zipfile

    source = read_dcp(odd)
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=3))
    metadata = read_metadata(out / ".metadata")
    for key, item in metadata.items:
        data = (out / item.file).read_bytes()[item.offset : item.offset + item.length]
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None, key


def test_saved_through_safetensors_is_refused(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as torch_dcp
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    from zerotools.core.errors import Unsupported

    writer = torch_dcp.FileSystemWriter(
        tmp_path, serialization_format=SerializationFormat.SAFETENSORS
    )
    torch_dcp.save({"w": torch.ones(4000)}, storage_writer=writer, no_dist=True)
    with pytest.raises(Unsupported, match=r"SerializationFormat\.SAFETENSORS"):
        read_dcp(tmp_path)
