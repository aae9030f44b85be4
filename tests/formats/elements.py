"""A tensor's elements, put together from its chunks as any reader of the model would."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_files import digests
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.numeric.dtype_casts import numpy_dtype


def elements(checkpoint: Checkpoint, key: Key) -> Any:
    """The whole tensor; every element must be in a chunk."""
    tensor = checkpoint.tensors[key]
    kind = numpy_dtype(tensor.dtype)
    out: Any = np.zeros(tensor.shape, kind)
    found = np.zeros(tensor.shape, bool)
    for chunk in tensor.chunks:
        if chunk.box.is_empty:
            continue
        strides = chunk.strides and tuple(step * kind.itemsize for step in chunk.strides)
        data = checkpoint.path_of(chunk).read_bytes()
        place = tuple(map(slice, chunk.box.start, chunk.box.stop))
        out[place] = np.ndarray(chunk.box.shape, kind, data, chunk.offset, strides)
        found[place] = True
    assert found.all(), key
    return out


def assert_true(checkpoint: Checkpoint, truth: Path, *, roles: set[str] | None = None) -> None:
    """Every tensor of a golden `truth.safetensors` is there, element for element.

    Formats that do not tell buffers from parameters have them as `param`.
    """
    for key, (_, shape, digest) in digests(truth).items():
        name, _, role = key.partition("|")
        if roles is not None and role not in roles:
            continue
        wanted = Key(name, role)
        if role == "buffer" and wanted not in checkpoint.tensors:
            wanted = Key(name, "param")
        whole = elements(checkpoint, wanted)
        assert whole.shape == shape, key
        assert hashlib.sha256(whole.tobytes()).hexdigest() == digest, key
