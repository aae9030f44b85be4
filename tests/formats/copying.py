"""Moving tensors in tests: a target is written by the real executor, a tensor read as bytes."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.target import Target
from zerotools.ops.conversions.conversion import with_target_sources
from zerotools.ops.execution.execute import execute
from zerotools.ops.execution.plan_copies import plan


def write(source: Checkpoint, target: Target) -> Path:
    """Write the target and return where it is."""
    execute(plan(with_target_sources(source, target), target.checkpoint), source.root, target)
    return target.checkpoint.root


def tensor_bytes(checkpoint: Checkpoint, key: Key) -> bytes:
    """A tensor that is cut along dimension 0 only, as one row-major block."""
    tensor = checkpoint.tensors[key]
    parts = []
    for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.box.start):
        assert chunk.is_contiguous
        assert chunk.box.shape[1:] == tensor.shape[1:]
        with checkpoint.path_of(chunk).open("rb") as file:
            file.seek(chunk.offset)
            parts.append(file.read(chunk.extent(tensor.dtype)))
    return b"".join(parts)
