"""What of DeepSpeed's checkpoints can be laid out again, and whether the bytes say so too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.errors import Unsupported
from zerotools.core.ranges import Ranges
from zerotools.formats.deepspeed.column import Column
from zerotools.formats.deepspeed.settings import Settings, zero_optimization
from zerotools.formats.deepspeed.shards import STAGE_3, first_of
from zerotools.io.arrays import Array, numpy_cast, numpy_dtype
from zerotools.io.files import OpenFiles

QUANTIZED = "zero_quantized_nontrainable_weights"
COMPARED = 64
"""Elements of each parameter that are compared with its master."""


def check_supported(path: Path, column: Column, count: int, settings: Settings) -> None:
    """Refuse what cannot be laid out again. `count` are the model-parallel ranks.

    Raises:
        Unsupported: see there.
    """
    if not column.groups:
        raise Unsupported(
            f"{path} has no ZeRO partitions that name their parameters, so there is nothing to "
            "distribute over other ranks"
        )
    if count > 1 and settings.stage == 3:
        raise Unsupported(
            f"{path} has {count} model-parallel ranks (pipeline or tensor), which zerotools does "
            "not move to stage 3"
        )
    if any(group.geometry.ranks != len(column.shards) for group in column.groups) or (
        column.model.fields.tree.get("num_experts")
    ):
        raise Unsupported(f"{path} has experts, which zerotools does not reshard")
    size = column.model.data_parallel_size
    if size not in (None, len(column.shards)):
        raise Unsupported(
            f"{path} is of {size} ranks in groups of {len(column.shards)} (MiCS), which zerotools "
            "does not reshard"
        )
    config = column.model.fields.tree.get("ds_config")
    if zero_optimization(config).get(QUANTIZED) and column.model.frozen_shapes:
        raise Unsupported(
            f"{path} has {QUANTIZED}: its frozen weights are quantized, and the scales are not in "
            "the checkpoint; save it without"
        )
    if column.model.groups is None:
        raise Unsupported(
            f"{path} was saved by DeepSpeed {column.model.version}, before 0.6.0; load it with "
            "DeepSpeed and save it again"
        )


def check_masters(source: Checkpoint, column: Column) -> None:
    """Compare the beginning of every master with the weight that was cast from it.

    Where they agree, the vectors lie in the order that `param_shapes` says, whatever the run's
    configuration says. Stage 3 keeps no weights to compare with.

    Raises:
        Unsupported: they disagree: the order of the vectors is not what the files say.
    """
    if first_of(column.shards).kind == STAGE_3 or column.model.module is None:
        return
    with OpenFiles(source.root) as files:
        for name, master, weight in _pairs(column):
            ours, theirs = _first(files, master), _first(files, weight)
            count = min(ours.size, theirs.size)
            cast = np.empty(count, theirs.dtype)
            numpy_cast(cast, ours[:count])
            both = (cast.astype(np.float64), theirs[:count].astype(np.float64))
            if not np.array_equal(*both, equal_nan=True):
                raise Unsupported(
                    f"{column.model.file.path}: {name} is not the {weight.dtype} of its master in "
                    f"{first_of(column.shards).file.path}: the flat vectors do not lie in the "
                    "order of param_shapes; load it with DeepSpeed, and save it again"
                )


def _pairs(column: Column) -> Iterator[tuple[str, Tensor, Tensor]]:
    for group in column.groups:
        for name, master in group.tensors("param"):
            stored = (column.model.module or {}).get(name)
            if stored is not None and stored.shape == master.shape:
                yield name, master, column.model.file.tensor(stored)


def _first(files: OpenFiles, tensor: Tensor) -> Array:
    """Up to COMPARED elements from the tensor's first on; none where they are in no file."""
    chunks = tensor.chunks
    found = chunks.flattened() if isinstance(chunks, Ranges) else iter(chunks)
    chunk = next(found, None)
    if chunk is None or any(chunk.box.start) or not chunk.is_contiguous:
        return np.empty(0, numpy_dtype(tensor.dtype))
    values = np.empty(min(COMPARED, chunk.box.numel), numpy_dtype(tensor.dtype))
    if values.size:
        files.read_into(chunk.file, chunk.offset, values.view(np.uint8).data)
    return values
