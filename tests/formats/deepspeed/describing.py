"""A `.pt` as plain values that compare equal where DeepSpeed would load equal objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.layouts import load
from zerotools.core.checkpoint import Checkpoint, Opaque
from zerotools.io.torchzip.pickle_values import Global
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor


def contents(checkpoint: Checkpoint) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor, by name and role."""
    return {
        f"{key.name}|{key.role}": (tensor.dtype.name, load(checkpoint, key).tobytes())
        for key, tensor in checkpoint.tensors.items()
    }


def describe(file: TorchFile) -> Any:
    """The tree of `file` with the bytes of its tensors in it."""
    return _described(file, file.tree)


def _described(file: TorchFile, value: Any) -> Any:
    tensor = as_tensor(value)
    if tensor is not None:
        data = file.path.read_bytes()
        begin = file.first_byte(tensor)
        count = max((n * s for n, s in zip(tensor.shape, tensor.strides, strict=True)), default=1)
        end = begin + (0 if 0 in tensor.shape else count) * tensor.dtype.itemsize
        return (tensor.dtype.name, tensor.shape, tensor.strides, data[begin:end])
    if isinstance(value, Opaque):
        parts = (value.args, value.state, dict(value.kwargs), value.items, value.appended)
        return (value.module, value.name, value.called, *(_described(file, p) for p in parts))
    if isinstance(value, Mapping):
        items = [(key, _described(file, held)) for key, held in value.items()]
        return (type(value).__name__, items, _described(file, getattr(value, "attributes", None)))
    if isinstance(value, list | tuple) and not isinstance(value, Global):
        return (type(value).__name__, [_described(file, held) for held in value])
    return value
