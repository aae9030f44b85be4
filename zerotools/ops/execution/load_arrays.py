"""Load tensors of a checkpoint into memory as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import (
    NONE_LOST,
    Array,
    LostValues,
    check_castable,
    numpy_dtype,
)
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.fill_tile import Losses, fill_tile
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import Tile

_MEMORY = Path("memory")
_MAX_NAMED = 5


def load_tensors(
    source: Checkpoint, dtypes: Mapping[Key, DType], budget: MemoryBudget | None = None
) -> dict[Key, Array]:
    """Load the tensors that are keys of `dtypes`, each cast to its dtype there. Casts round to
    nearest even.

    The memory of the arrays is not part of `budget`, which limits the buffers.

    Raises:
        BadRequest: a tensor has finite values that are too large for the dtype.
        BadFile: a tensor is incomplete, or its file is damaged or changed since `source` was read.
        Unsupported: a cast is not between floating-point dtypes.
    """
    tensors: dict[Key, Tensor] = {}
    for number, (key, dtype) in enumerate(dtypes.items()):
        check_castable(source.tensors[key].dtype, dtype)
        shape = source.tensors[key].shape
        tensors[key] = Tensor(dtype, shape, (Chunk(Box.whole(shape), str(number), 0),))
    arrays = {key: np.empty(t.shape, numpy_dtype(t.dtype)) for key, t in tensors.items()}
    raw = {str(i): array.reshape(-1).view(np.uint8) for i, array in enumerate(arrays.values())}

    found: Losses = []

    def load_tile(tile: Tile, scratch: Scratch) -> None:
        data, losses = fill_tile(reads, tile, scratch)
        found.extend((key, some) for key, some in losses if some.overflowed)
        raw[tile.file][tile.offset : tile.offset + len(data)] = np.frombuffer(data, np.uint8)

    target = Checkpoint(_MEMORY, tensors, Origin("memory", _MEMORY))
    sources = Sources(source.stamps)
    with (
        OpenFiles(source.root, sources=sources) as reads,
        TileWorkers((budget or MemoryBudget()).reading(source.root)) as workers,
    ):
        for _ in workers.each(plan(source, target), load_tile):
            pass
        reads.check_sources()
    _refuse_overflow(found, dtypes)
    return arrays


def _refuse_overflow(found: Losses, dtypes: Mapping[Key, DType]) -> None:
    lost: dict[Key, LostValues] = {}
    for key, losses in found:
        lost[key] = lost.get(key, NONE_LOST) + losses
    if not lost:
        return
    worst = "; ".join(
        f"{key} in {dtypes[key]}: {losses.overflowed} too large, the largest {losses.largest:g}"
        for key, losses in list(lost.items())[:_MAX_NAMED]
    )
    raise BadRequest(f"finite values are too large for their new dtype ({worst}); use bf16 or fp32")
