"""Weights of 4-bit floats (E2M1), two in a byte.

NAME_blocks        uint8 (experts, rows, groups, 16)   gpt-oss: MXFP4, of a weight that the
NAME_scales        uint8 (experts, rows, groups)       model has as (experts, columns, rows)
M.weight_packed    uint8 (rows, columns / 2)           compressed-tensors: NVFP4 in groups of
M.weight_scale     float8_e4m3fn (rows, columns / 16)  16, or MXFP4 in groups of 32 with
M.weight_global_scale  float32 (1)                     exponents (uint8) and no global scale
M.weight           uint8 (rows, columns / 2)           ModelOpt: NVFP4, whose second scale is
M.weight_scale, M.weight_scale_2                       multiplied, and not divided by
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.quantisation_schemes import GLOBAL_SCALE, PAYLOAD, SCALES, PackedFours
from zerotools.ops.quantised.quantisation import QuantisedWeight, weight

_MX, _NV = 32, 16
_BLOCKS, _SCALES, _PACKED, _WEIGHT = "_blocks", "_scales", ".weight_packed", ".weight"


def four_bits(
    key: Key, tensor: Tensor, tensors: Mapping[Key, Tensor]
) -> QuantisedWeight | str | None:
    """Return the same as `eight_bits` for payloads of `uint8`."""
    if tensor.dtype != dtypes.UINT8:
        return None
    name = key.name
    if name.endswith(_BLOCKS):
        return _of_experts(
            key, tensor, Key(name.removesuffix(_BLOCKS) + _SCALES, key.role), tensors
        )
    if name.endswith(_PACKED):
        stem = name.removesuffix(_PACKED)
        return _packed(key, tensor, tensors, stem, f"{stem}.weight_global_scale", is_divided=True)
    if name.endswith(_WEIGHT) and Key(f"{name}_scale_2", key.role) in tensors:
        stem = name.removesuffix(_WEIGHT)
        return _packed(key, tensor, tensors, stem, f"{name}_scale_2", is_divided=False)
    return None


def _of_experts(
    key: Key, tensor: Tensor, scales: Key, tensors: Mapping[Key, Tensor]
) -> QuantisedWeight | str | None:
    held = tensors.get(scales)
    if held is None:
        return (
            f"{key.name} has no scales: {scales.name} is missing"
            if len(tensor.shape) == 4
            else None
        )
    shape = tensor.shape
    if held.dtype != dtypes.UINT8:
        return f"{scales.name} is {held.dtype}, but exponents of MXFP4 are uint8"
    if len(shape) != 4 or shape[-1] != _MX // 2 or held.shape != shape[:-1]:
        return (
            f"{scales.name} has shape {list(held.shape)} and {key.name} {list(shape)}: they should "
            "be (experts, rows, groups) and (experts, rows, groups, 16)"
        )
    experts, rows, groups, _ = shape
    scheme = PackedFours(_MX, is_exponent=True, blocks=True, transposed=True)
    new = Key(key.name.removesuffix(_BLOCKS), key.role)
    inputs = {PAYLOAD: (key, tensor), SCALES: (scales, held)}
    return weight(new, f"mxfp4 groups of {_MX}", (experts, groups * _MX, rows), scheme, inputs)


def _packed(
    key: Key,
    tensor: Tensor,
    tensors: Mapping[Key, Tensor],
    stem: str,
    whole_name: str,
    *,
    is_divided: bool,
) -> QuantisedWeight | str:
    scales, whole = Key(f"{stem}.weight_scale", key.role), Key(whole_name, key.role)
    held = tensors.get(scales)
    if held is None:
        return f"{key.name} has no scales: {scales.name} is missing"
    if Key(f"{stem}.weight_zero_point", key.role) in tensors:
        return f"{key.name} has zero points, which zerotools does not read"
    is_exponent = held.dtype in (dtypes.UINT8, dtypes.FLOAT8_E8M0FNU)
    if not is_exponent and held.dtype not in (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT32):
        return (
            f"{scales.name} is {held.dtype}, but scales of 4-bit floats are float8_e4m3fn or uint8"
        )
    if not is_exponent and whole not in tensors:
        return f"{key.name} has no global scale: {whole.name} is missing"
    group = _MX if is_exponent else _NV
    shape = (*tensor.shape[:-1], 2 * tensor.shape[-1]) if tensor.shape else ()
    needed = (*shape[:-1], -(-shape[-1] // group)) if shape else ()
    if len(shape) < 2 or held.shape != needed:
        return (
            f"{scales.name} has shape {list(held.shape)}, but {key.name} of shape "
            f"{list(tensor.shape)} needs {list(needed)} in groups of {group}"
        )
    inputs = {PAYLOAD: (key, tensor), SCALES: (scales, held)}
    if not is_exponent:
        one = tensors[whole]
        if one.numel != 1 or one.dtype != dtypes.FLOAT32:
            return (
                f"{whole.name} is {one.dtype} of shape {list(one.shape)}, but a global scale is "
                "one float32"
            )
        inputs[GLOBAL_SCALE] = (whole, as_vector(one))
    scheme = PackedFours(group, is_exponent=is_exponent, is_divided=is_divided)
    kind = f"{'mxfp4' if is_exponent else 'nvfp4'} groups of {group}"
    return weight(Key(f"{stem}.weight", key.role), kind, shape, scheme, inputs)


def as_vector(one: Tensor) -> Tensor:
    """Return a tensor of one element, as one of one dimension."""
    vector = Box((0,), (1,))
    return Tensor(one.dtype, (1,), [replace(c, box=vector, strides=None) for c in one.chunks])
