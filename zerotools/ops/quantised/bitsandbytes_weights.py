"""Find the weights that bitsandbytes quantised.

    M.weight                       uint8 (n / 2, 1)  nf4 or fp4: two elements in a byte, high bits
    M.weight.absmax                float32, or uint8 if it is quantised itself (double quant)
    M.weight.quant_map             float32 (16)
    M.weight.nested_absmax, .nested_quant_map        of a quantised absmax
    M.weight.quant_state.bitsandbytes__nf4           uint8: JSON with shape, blocksize, dtype, ...
    M.weight                       int8 (rows, columns), with M.SCB float32 (rows)

The JSON is data of a file: its numbers are checked against the shapes before they are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core import dtypes
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.quantisation_schemes import (
    CODE,
    NESTED_CODE,
    NESTED_SCALES,
    PAYLOAD,
    SCALES,
    BlockScaled,
    CodedFourBit,
)
from zerotools.io.files.regular_files import source_file
from zerotools.ops.quantised.quantised_weights import QuantisedWeight, quantised_weight

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_LARGEST_STATE = 4096
_LARGEST_BLOCK = 2**16
_MOST_DIMENSIONS = 8
_LARGEST_OFFSET = 1e30
_BY_127 = 7.874015718698502e-3
"""1 / 127, as bitsandbytes' `int8_vectorwise_dequant` writes it."""
Inputs = dict[str, tuple[Key, Tensor]]


def bits_and_bytes(
    key: Key, tensor: Tensor, tensors: Mapping[Key, Tensor], root: Path
) -> QuantisedWeight | str | None:
    """Return the quantised weight of bitsandbytes with the payload `key`, or a sentence if the
    weight has a fault. Return None if `key` is not such a payload.

    The JSON of the weight's state is read from a file below `root`.
    """
    if tensor.dtype == dtypes.INT8 and key.name.endswith(".weight"):
        return _int8(key, tensor, tensors, root)
    kind = next((k for k in _KINDS if Key(key.name + _STATE + k, key.role) in tensors), None)
    if kind is None:
        return None
    if tensor.dtype != dtypes.UINT8:
        return f"{key.name} is {tensor.dtype}, but zerotools reads only {kind} stored as uint8"
    state_key = Key(key.name + _STATE + kind, key.role)
    state = _state(root, tensors[state_key])
    if isinstance(state, str):
        return f"{state_key.name} {state}"
    return _fours(key, tensor, tensors, kind, state_key, state)


def _int8(
    key: Key, tensor: Tensor, tensors: Mapping[Key, Tensor], root: Path
) -> QuantisedWeight | str | None:
    stem = key.name.removesuffix(".weight")
    scales, layout = Key(f"{stem}.SCB", key.role), Key(f"{key.name}_format", key.role)
    if scales not in tensors:
        return None
    held = tensors[scales]
    if len(tensor.shape) != 2 or held.shape != tensor.shape[:1] or held.dtype != dtypes.FLOAT32:
        return (
            f"{scales.name} is {held.dtype} of shape {list(held.shape)}, but {key.name} of shape "
            f"{list(tensor.shape)} needs one float32 for each row"
        )
    block = (1, max(1, tensor.shape[1]))
    scheme = BlockScaled(block, (0,), factor=_BY_127)
    inputs = {PAYLOAD: (key, tensor), SCALES: (scales, held)}
    extra_keys = (layout,) if layout in tensors else ()
    if extra_keys and not _is_row_major(root, tensors[layout]):
        return (
            f"{key.name} has its rows in another order ({layout.name} is not 0, which stands for "
            "row-major)"
        )
    return quantised_weight(key, "int8 of bitsandbytes", tensor.shape, scheme, inputs, extra_keys)


def _is_row_major(root: Path, layout: Tensor) -> bool:
    """Return whether the byte `weight_format` is 0, which is "row"."""
    return layout.numel == 1 and _read(root, layout) == bytes(layout.dtype.itemsize)


def _fours(
    key: Key,
    tensor: Tensor,
    tensors: Mapping[Key, Tensor],
    kind: str,
    state_key: Key,
    state: Mapping[str, Any],
) -> QuantisedWeight | str:
    shape, block = tuple(state["shape"]), state["blocksize"]
    count = prod(shape)
    if tensor.shape != (-(-count // 2), 1):
        return (
            f"{key.name} has shape {list(tensor.shape)}, but its quant_state has {list(shape)}, "
            f"which needs [{-(-count // 2)}, 1]"
        )
    is_nested = "nested_absmax" in _present(key, tensors)
    scales = -(-count // block)
    wanted: dict[str, tuple[str, dtypes.DType, int]] = {
        SCALES: ("absmax", dtypes.UINT8 if is_nested else dtypes.FLOAT32, scales),
        CODE: ("quant_map", dtypes.FLOAT32, 16),
    }
    nested_block, offset = 0, 0.0
    if is_nested:
        nested_block, offset = state["nested_blocksize"], state["nested_offset"]
        if not nested_block or offset is None:
            return f"{state_key.name} has no nested_blocksize or nested_offset for a uint8 absmax"
        nested = -(-scales // nested_block)
        wanted[NESTED_SCALES] = ("nested_absmax", dtypes.FLOAT32, nested)
        wanted[NESTED_CODE] = ("nested_quant_map", dtypes.FLOAT32, 256)
    inputs: Inputs = {PAYLOAD: (key, tensor)}
    for name, (suffix, dtype, size) in wanted.items():
        part = Key(f"{key.name}.{suffix}", key.role)
        held = tensors.get(part)
        if held is None:
            return f"{key.name} has no scales: {part.name} is missing"
        if held.dtype != dtype or held.shape != (size,):
            return (
                f"{part.name} is {held.dtype} of shape {list(held.shape)}, but {key.name} needs "
                f"{dtype} of shape [{size}]"
            )
        inputs[name] = (part, held)
    said = f"{kind} blocks of {block}" + (", scales quantised too" if is_nested else "")
    scheme = CodedFourBit(shape, block, nested_block, offset, is_signed=kind == "fp4")
    return quantised_weight(key, said, shape, scheme, inputs, (state_key,))


def _present(key: Key, tensors: Mapping[Key, Tensor]) -> set[str]:
    names = ("nested_absmax", "nested_quant_map")
    return {name for name in names if Key(f"{key.name}.{name}", key.role) in tensors}


def _state(root: Path, tensor: Tensor) -> dict[str, Any] | str:
    """Read and check the state of a weight, and return its values that are needed. If the state has
    a fault, return a text about it that follows the name of the tensor."""
    if tensor.dtype != dtypes.UINT8 or len(tensor.shape) != 1 or tensor.numel > _LARGEST_STATE:
        return (
            f"is {tensor.dtype} of shape {list(tensor.shape)}, but should be at most "
            f"{_LARGEST_STATE} bytes of JSON"
        )
    try:
        said: Any = json.loads(_read(root, tensor))
    except (ValueError, RecursionError):
        return "is not valid JSON in one contiguous range of a file"
    if not isinstance(said, dict):
        return "is not a table in JSON"
    shape, block = said.get("shape"), said.get("blocksize")
    if not (
        isinstance(shape, list)
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < 2**48 for size in shape)
        and prod(shape) < 2**62
    ):
        return f"has {shape!r:.80}, which is not a shape"
    if not _is_block(block):
        return f"has the blocksize {block!r:.80}, but bitsandbytes has 32 to 4096"
    nested, offset = said.get("nested_blocksize"), said.get("nested_offset")
    if nested is not None and not _is_block(nested):
        return f"has the nested_blocksize {nested!r:.80}, which is not a block size"
    if offset is not None and not (type(offset) in (int, float) and abs(offset) < _LARGEST_OFFSET):
        return f"has the nested_offset {offset!r:.80}, which is not a number"
    return {
        "shape": shape,
        "blocksize": block,
        "nested_blocksize": nested,
        "nested_offset": None if offset is None else float(offset),
    }


def _read(root: Path, tensor: Tensor) -> bytes:
    """Return the bytes of a small tensor; empty if it has several chunks or cannot be read."""
    chunk = next(iter(tensor.chunks), None)
    if chunk is None or chunk.box.shape != tensor.shape:
        return b""
    try:
        with source_file(root / chunk.file) as source:
            return source.read(tensor.numel * tensor.dtype.itemsize, chunk.offset)
    except OSError:
        return b""


def _is_block(value: Any) -> bool:
    return type(value) is int and 2 <= value <= _LARGEST_BLOCK and value & (value - 1) == 0
