"""Adapters of a LoRA run added to their weights: W + scale · B·A, in fp32.

This is a computation, and no copy: it is made where the job's record says that it trained adapters,
and nowhere else. The sums go to a file beside the output, some rows at a time, and the export reads
them from there like any other source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.layout import Placed, moved
from zerotools.formats.dcp.jobrecord import JobRecord
from zerotools.ops.load import load

BASE, A, B = ".base_layer.", ".lora_A.default.", ".lora_B.default."
ROW_BYTES = 16 * 1024 * 1024
"""Rows of about so many bytes are added up at a time."""


@dataclass(frozen=True)
class Merge:
    """One weight and its adapter in a checkpoint, and the file where their sum goes."""

    weight: Key
    down: Key
    up: Key
    file: str


@dataclass(frozen=True)
class Merged:
    """`checkpoint` has the weights' sums in place of weights and adapters; they are there while
    the context that `sums` makes is open."""

    checkpoint: Checkpoint
    sums: Callable[[], AbstractContextManager[None]]
    note: str


def merge_adapters(checkpoint: Checkpoint, scratch: Path) -> Merged | None:
    """What is exported of a run that trained adapters; None of any other.

    `scratch` is the directory for the sums, which does not exist yet.

    Raises:
        BadFile: a weight has half an adapter, or one of other shapes.
    """
    record = checkpoint.origin.details.get("job")
    if not isinstance(record, JobRecord) or record.lora is None:
        return None
    scale = record.lora.scale
    merges = {_plain(merge.weight): merge for merge in _merges(checkpoint, scratch)}
    tensors: dict[Key, Tensor] = {}
    files = dict(checkpoint.files)
    for key, tensor in checkpoint.tensors.items():
        if A in key.name or B in key.name:
            continue
        new = _plain(key)
        tensors[new] = tensor
        if new in merges:
            whole = Chunk(Box.whole(tensor.shape), merges[new].file, 0)
            tensors[new] = Tensor(dtypes.FLOAT32, tensor.shape, (whole,))
            files[merges[new].file] = tensor.numel * 4
    size = sum(tensors[key].nbytes for key in merges)
    return Merged(
        replace(checkpoint, tensors=tensors, files=files),
        lambda: _summed(checkpoint, list(merges.values()), scale, scratch),
        f"{len(merges)} weights have their adapters added, {scale:g} times; the sums take {size} "
        "bytes beside the output while it is written",
    )


def _plain(key: Key) -> Key:
    return Key(key.name.replace(BASE, "."), key.role)


def _merges(checkpoint: Checkpoint, scratch: Path) -> Iterator[Merge]:
    for number, (key, tensor) in enumerate(checkpoint.tensors.items()):
        stem, found, rest = key.name.partition(BASE)
        if key.role != "param" or not found or rest != "weight":
            continue
        down, up = Key(f"{stem}{A}weight", "param"), Key(f"{stem}{B}weight", "param")
        for half in (down, up):
            if half not in checkpoint.tensors:
                raise BadFile(f"{checkpoint.origin.path} has {key.name} and no {half.name}")
        shapes = [checkpoint.tensors[half].shape for half in (up, down)]
        if (shapes[0][:1] + shapes[1][1:], shapes[0][1:]) != (tensor.shape, shapes[1][:1]):
            raise BadFile(
                f"{checkpoint.origin.path}: {key.name} has shape {list(tensor.shape)} and its "
                f"adapter {list(shapes[0])} times {list(shapes[1])}"
            )
        yield Merge(key, down, up, str(scratch.absolute() / f"{number}.f32"))


@contextmanager
def _summed(
    checkpoint: Checkpoint, merges: list[Merge], scale: float, scratch: Path
) -> Iterator[None]:
    scratch.mkdir()
    try:
        for merge in merges:
            _add_up(checkpoint, merge, scale)
        yield
    finally:
        for merge in merges:
            Path(merge.file).unlink(missing_ok=True)
        scratch.rmdir()


def _add_up(checkpoint: Checkpoint, merge: Merge, scale: float) -> None:
    halves = load(checkpoint, dict.fromkeys((merge.down, merge.up), dtypes.FLOAT32))
    down, up = halves[merge.down], halves[merge.up]
    weight = checkpoint.tensors[merge.weight]
    most = max(1, ROW_BYTES // max(1, weight.shape[1] * 4))
    with Path(merge.file).open("wb") as file:
        for first in range(0, weight.shape[0], most):
            rows = _rows(weight, first, min(most, weight.shape[0] - first))
            part = replace(checkpoint, tensors={merge.weight: rows})
            total = load(part, {merge.weight: dtypes.FLOAT32})[merge.weight]
            total += np.float32(scale) * (up[first : first + most] @ down)
            file.write(total.tobytes())


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    """Some rows of a matrix, as a tensor of their own."""
    shape = (count, tensor.shape[1])
    placed = Placed(Box((first, 0), shape), (0, 0))
    chunks = (moved(chunk, placed, tensor.dtype) for chunk in tensor.chunks)
    return Tensor(tensor.dtype, shape, tuple(chunk for chunk in chunks if chunk is not None))
