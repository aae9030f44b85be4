"""`.metadata` of a DCP whose data file holds one tensor and one number: what is read of it lies
inside its file, and is what torch's own reader loads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzzing import scratch
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.dcp.read import read
from zerotools.formats.dcp.training_state import training_of
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect

DATA = Path(__file__).parent / "corpus" / "dcp-data" / "__0_0.distcp"
LARGEST = 2**20
BUDGET = MemoryBudget(2**22, 1)


@cache
def _directory() -> Path:
    path = scratch.scratch("dcp")
    (path / "__0_0.distcp").write_bytes(DATA.read_bytes())
    return path


def check(data: bytes) -> None:
    """`data` is `.metadata`."""
    directory = _directory()
    (directory / ".metadata").write_bytes(data)
    found: dict[str, bytes] | None = None
    problem: ZerotoolsError | None = None
    try:
        checkpoint = read(directory)
        found = _tensors(checkpoint)
    except ZerotoolsError as error:
        assert str(directory) in str(error), str(error)
        problem = error
    if scratch.PEERS and (found or problem):
        from tests.fuzzing.peers import torch_dcp

        torch_dcp.compare(directory, found, problem)


def _tensors(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The bytes of every whole tensor, by its flat key."""
    inspect(checkpoint)
    training_of(checkpoint)
    dict(checkpoint.state)
    found: dict[str, bytes] = {}
    native: Any = checkpoint.native
    for key, tensor in checkpoint.tensors.items():
        for chunk in tensor.chunks:
            size = checkpoint.files[chunk.file]
            assert 0 <= chunk.offset <= chunk.offset + chunk.extent(tensor.dtype) <= size
        if tensor.nbytes <= LARGEST:
            whole = load_tensors(checkpoint, {key: tensor.dtype}, BUDGET)[key]
            found[native.flat_keys[key]] = whole.tobytes()
    return found
