"""Adapters of a LoRA run added to their weights: W + scale · B·A, in fp32; transposed where the
layer keeps its weight so (GPT-2's).

This is a computation, and no copy: it is made where the job's record says that it trained adapters,
and nowhere else. The sums go to a file next to the output, some rows at a time, and the export
reads them from there like any other source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.layout import PlacedBlock, place_chunk
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.staging import Staging, partial_of
from zerotools.ops.execution.load_arrays import load
from zerotools.ops.weights.base_weights import BASE, A, B, check_bytes, with_base
from zerotools.runs.record import LoraRecord

ROW_BYTES = 16 * 1024 * 1024
"""Rows of about so many bytes are added up at a time."""


@dataclass(frozen=True)
class AdapterMerge:
    """One weight and its adapter in a checkpoint, and the file where their sum goes. The product
    of `left` and `right` is what is added."""

    weight: Key
    left: Key
    right: Key
    is_transposed: bool
    file: str


@dataclass(frozen=True)
class MergedAdapters:
    """`checkpoint` has the weights' sums in place of weights and adapters; they are there, in the
    directory `scratch`, while the context that `sums` makes is open."""

    checkpoint: Checkpoint
    sums: Callable[[], AbstractContextManager[None]]
    bytes: int
    scratch: Path
    note: str


def merge_adapters(
    checkpoint: Checkpoint,
    scratch: Path,
    table: FormatTable = FORMATS,
    base_directory: Path | None = None,
) -> MergedAdapters | None:
    """What is exported of a run that trained adapters, as the record of its job says; None of any
    other. The base model of adapters that were saved alone is at `base_directory`, or where the run
    had it.

    The sums go to a directory next to `scratch`; what a killed run left there is removed first.

    Raises:
        BadFile: a weight has half an adapter, or one of other shapes; or an adapter has no weight.
        BadRequest: the checkpoint holds adapters alone, and their base model is not there; or it
            does not, and one is given.
    """
    record = format_of(checkpoint, table).job_record(checkpoint)
    base = None if record is None or record.lora is None else record.lora.base
    if base_directory is not None:
        if base is None:
            raise BadRequest(
                f"--base is for adapters that a job saved without their base model, and "
                f"{checkpoint.origin.path} holds whole weights; leave it out"
            )
        if isinstance(base_directory, RemotePath):
            raise BadRequest(
                f"--base {base_directory}: the base model must be on a disk here; copy it there"
            )
        base = replace(base, path=str(base_directory.absolute()))
    if record is None or record.lora is None:
        return None
    adapters = checkpoint
    if base is not None:
        checkpoint = with_base(adapters, record, base)
    scale, folder = record.lora.scale, partial_of(scratch)
    merges = {_plain(merge.weight): merge for merge in _merges(checkpoint, record.lora, folder)}
    _refuse_strays(checkpoint, merges.values())
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

    def sums() -> AbstractContextManager[None]:
        if base is not None:
            check_bytes(adapters, base)
        return _summed(checkpoint, list(merges.values()), scale, scratch)

    return MergedAdapters(
        replace(checkpoint, tensors=tensors, files=files),
        sums,
        size,
        folder,
        f"{counted(len(merges), 'weight')} get their adapters added, scaled by {scale:g}; the sums "
        f"take {size} bytes next to the output while it is written",
    )


def _plain(key: Key) -> Key:
    return Key(key.name.replace(BASE, "."), key.role)


def _merges(checkpoint: Checkpoint, lora: LoraRecord, folder: Path) -> Iterator[AdapterMerge]:
    for number, (key, tensor) in enumerate(checkpoint.tensors.items()):
        stem, found, rest = key.name.partition(BASE)
        if key.role != "param" or not found or rest != "weight":
            continue
        down, up = Key(f"{stem}{A}weight", "param"), Key(f"{stem}{B}weight", "param")
        for half in (down, up):
            if half not in checkpoint.tensors:
                raise BadFile(f"{checkpoint.origin.path} has {key.name} but no {half.name}")
        is_transposed = stem in lora.fan_in_fan_out
        shapes = [checkpoint.tensors[half].shape for half in (up, down)]
        product = shapes[0][:1] + shapes[1][1:]
        expected_shape = tensor.shape[::-1] if is_transposed else tensor.shape
        if (product, shapes[0][1:]) != (expected_shape, shapes[1][:1]):
            raise BadFile(
                f"{checkpoint.origin.path}: {key.name} has shape {list(tensor.shape)} and its "
                f"adapter {list(shapes[0])} times {list(shapes[1])}"
            )
        left, right = (down, up) if is_transposed else (up, down)
        yield AdapterMerge(key, left, right, is_transposed, str(folder / f"{number}.f32"))


def _refuse_strays(checkpoint: Checkpoint, merges: Iterable[AdapterMerge]) -> None:
    """An adapter that belongs to no weight here would be lost in silence."""
    used = {half for merge in merges for half in (merge.left, merge.right)}
    for key in checkpoint.tensors:
        if key.role == "param" and (A in key.name or B in key.name) and key not in used:
            raise BadFile(
                f"{checkpoint.origin.path} has {key.name} but not the weight to which it is added"
            )


@contextmanager
def _summed(
    checkpoint: Checkpoint, merges: list[AdapterMerge], scale: float, scratch: Path
) -> Iterator[None]:
    interruption = None
    with Staging(scratch):
        try:
            for merge in merges:
                _add_up(checkpoint, merge, scale)
            yield
        except KeyboardInterrupt as error:  # for which a staging directory would be kept
            interruption = error
    if interruption is not None:
        raise interruption


def _add_up(checkpoint: Checkpoint, merge: AdapterMerge, scale: float) -> None:
    halves = load(checkpoint, dict.fromkeys((merge.left, merge.right), dtypes.FLOAT32))
    left, right = halves[merge.left], halves[merge.right]
    if merge.is_transposed:
        left, right = left.T, right.T
    weight = checkpoint.tensors[merge.weight]
    most = max(1, ROW_BYTES // max(1, weight.shape[1] * 4))
    with Path(merge.file).open("wb") as file:
        for first in range(0, weight.shape[0], most):
            rows = _rows(weight, first, min(most, weight.shape[0] - first))
            part = replace(checkpoint, tensors={merge.weight: rows})
            total = load(part, {merge.weight: dtypes.FLOAT32})[merge.weight]
            total += np.float32(scale) * (left[first : first + most] @ right)
            file.write(total.tobytes())


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    """Some rows of a matrix, as a tensor of their own."""
    shape = (count, tensor.shape[1])
    placed = PlacedBlock(Box((first, 0), shape), (0, 0))
    chunks = (place_chunk(chunk, placed, tensor.dtype) for chunk in tensor.chunks)
    return Tensor(tensor.dtype, shape, tuple(chunk for chunk in chunks if chunk is not None))
