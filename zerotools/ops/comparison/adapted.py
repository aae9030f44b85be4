"""Weights with an adapter added, computed block by block while they are compared, in fp32. Nothing
is written, and no weight is held whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import local

import numpy as np

from zerotools.core.adapter_names import DEFAULT, adapter_tensors
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from zerotools.formats import FORMATS, FormatTable, read_any
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.numpy_dtypes import Array, as_type, numpy_dtype
from zerotools.ops.comparison.blocks import Block, LocatedTensor
from zerotools.ops.weights.adapted_model import plain_weights
from zerotools.ops.weights.adapter_changes import Change, applied, block_reader
from zerotools.ops.weights.adapter_config import (
    check_config,
    read_adapter_config,
    refuse_changed_base,
)
from zerotools.ops.weights.lora_merge import on_base
from zerotools.ops.weights.selection import MASTERS, weights_from

# The widest step between two numbers of a type, relative to them.
_STEP = {BFLOAT16: 2.0**-7, FLOAT16: 2.0**-10}


@dataclass(frozen=True, slots=True)
class Adapted:
    """The change that an adapter makes to one weight; `halves` holds the tensors that are named."""

    changes: tuple[Change, ...]
    halves: Checkpoint


class AdaptedTensor(LocatedTensor):
    """A weight with an adapter added, as an fp32 tensor. Its blocks are boxes, so that rows and
    columns are known."""

    def __init__(self, checkpoint: Checkpoint, key: Key, adapted: Adapted) -> None:
        """Open the pair. Raises BadFile: it has a hole, an overlap, or a chunk outside its file."""
        super().__init__(checkpoint, key)
        self._stored = LocatedTensor(checkpoint, key)
        read = block_reader(checkpoint, key)
        self._apply = applied(adapted.changes, adapted.halves, self.shape, read)
        self.dtype, self.ranges = FLOAT32, None
        self._last = local()

    def read(self, files: ThreadFiles, block: Block, raw: Array, buffer: Array) -> None:
        """Read the sum, like `LocatedTensor.read`."""
        box, dtype = block.box, self._stored.dtype
        assert box is not None, "a tensor without ranges is read by boxes"
        stored = np.empty((block.end - block.begin) * dtype.itemsize, np.uint8)
        self._stored.read(files, block, stored, buffer)
        values = as_type(stored.view(numpy_dtype(dtype)), FLOAT32).reshape(box.shape)
        total = self._apply(box, values)
        raw.view(np.float32).reshape(box.shape)[...] = total
        self._last.sizes = np.maximum(np.abs(values), np.abs(total - values)).ravel()

    def sizes(self) -> Array | None:
        """Return the magnitudes of both summands: PEFT rounds the added values, and their sum may
        be small."""
        sizes: Array = self._last.sizes
        return sizes


def with_adapter(
    base: Checkpoint, path: Path, table: FormatTable = FORMATS
) -> tuple[Checkpoint, Mapping[Key, Adapted]]:
    """Return the model `base` with the adapter in the directory `path`. Modules that the adapter
    holds whole replace the base's, and the rest is added to weights as they are read.

    Raises:
        BadRequest: it is not an adapter, or not one of this model.
        BadFile: its files are damaged, or half of it is missing.
        Unsupported: it is of a kind that is not summed here.
    """
    config = read_adapter_config(path)
    adapter = read_any(path, table=table)
    tensors = adapter_tensors(adapter.tensors, None, path)
    check_config(config, tensors, {e.saved: adapter.tensors[e.key] for e in tensors}, path)
    refuse_changed_base(config, path)
    held = weights_from(adapter, MASTERS)
    model = on_base(held, plain_weights(held, DEFAULT), tensors, config, base)
    changes = {key: Adapted(each, model.halves) for key, each in model.changes.items()}
    made = model.weights  # and the values of B for the run
    return replace(made, origin=base.origin, native=base.native, state=base.state), changes


def tolerance_of_sums(merged: Checkpoint) -> str:
    """Return the allowed difference of a merged model from base and adapter: a rounding step of its
    narrowest type, and the effect of the order of a sum in fp32."""
    types = {t.dtype for key, t in merged.tensors.items() if key.role in ("param", "param16")}
    steps = [_STEP[dtype] for dtype in types if dtype in _STEP]
    return f"abs=1e-06,rel={max(steps, default=1e-5):g}"
