"""Quantised weights with a payload of 8 or 4 bits and scales. With 8 bits: value = payload x scale,
with one scale for each block, group, row or tensor.

    NAME             float8_e4m3fn, float8_e5m2 or int8
    NAME_scale_inv   DeepSeek-V3, transformers' fp8; uint8 or float8_e8m0fnu: exponents (MXFP8)
    NAME_scale       compressed-tensors (float-quantized, int-quantized, mxfp8-quantized)

4-bit floats (E2M1), two in a byte:

    NAME_blocks        uint8 (experts, rows, groups, 16)   gpt-oss: MXFP4, of a weight that the
    NAME_scales        uint8 (experts, rows, groups)       model has as (experts, columns, rows)
    M.weight_packed    uint8 (rows, columns / 2)           compressed-tensors: NVFP4 in groups of
    M.weight_scale     float8_e4m3fn (rows, columns / 16)  16, or MXFP4 in groups of 32 with
    M.weight_global_scale  float32 (1)                     exponents (uint8) and no global scale
    M.weight           uint8 (rows, columns / 2)           ModelOpt: NVFP4 with a second scale that
    M.weight_scale, M.weight_scale_2                       is multiplied, and not divided by

The config gives the block of elements that shares a scale. Without it, the block follows from the
shapes of payload and scales if only one block fits them, for example with one scale for each row.
Exponents are scales of 32 elements of a row, like in OCP's MX formats. In all other cases zerotools
does not guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.quantisation_schemes import (
    GLOBAL_SCALE,
    PAYLOAD,
    SCALES,
    BlockScaled,
    PackedFourBit,
    scale_shape,
)
from zerotools.ops.quantised.quantisation_config import Block, Blocks
from zerotools.ops.quantised.quantised_weights import (
    QuantisedWeight,
    UnprovedScales,
    quantised_weight,
)

PAYLOADS = {dtypes.FLOAT8_E4M3FN: "fp8", dtypes.FLOAT8_E5M2: "fp8 e5m2", dtypes.INT8: "int8"}
EXPONENTS = (dtypes.UINT8, dtypes.FLOAT8_E8M0FNU)
FLOATS = (dtypes.FLOAT32, dtypes.BFLOAT16, dtypes.FLOAT16)
SUFFIXES = ("_scale_inv", "_scale")
MX_BLOCKS: Blocks = ((1, 32),)
USUAL_BLOCKS: Blocks = ((128, 128), *MX_BLOCKS)


def eight_bits(
    key: Key, tensor: Tensor, tensors: Mapping[Key, Tensor], blocks: Blocks
) -> QuantisedWeight | UnprovedScales | str | None:
    """Return the quantised weight with the payload `key`; None if `key` is not such a payload.

    Return `UnprovedScales` if several block sizes are possible, and a sentence if the weight has a
    fault. `blocks` are the block sizes that the config names.
    """
    if tensor.dtype not in PAYLOADS:
        return None
    found = (Key(key.name + suffix, key.role) for suffix in SUFFIXES)
    scales = next((each for each in found if each in tensors), None)
    if scales is None:
        return None
    if Key(f"{key.name}_zero_point", key.role) in tensors:
        return f"{key.name} has zero points, which zerotools does not read"
    held = tensors[scales]
    if held.dtype not in (*EXPONENTS, *FLOATS):
        return f"{scales.name} is {held.dtype}: scales are floats of 16 or 32 bits, or exponents"
    scheme = block_scheme(tensor.shape, held.shape, blocks, is_exponent=held.dtype in EXPONENTS)
    if isinstance(scheme, tuple):
        return several_fit(key, tensor, scales, held, scheme, is_named=bool(blocks))
    if scheme is None:
        return wrong_shape(key, tensor, scales, held, blocks)
    inputs = {PAYLOAD: (key, tensor), SCALES: (scales, held)}
    kind = f"{_word(tensor, scheme)} {_extent(scheme, tensor.shape)}"
    return quantised_weight(key, kind, tensor.shape, scheme, inputs)


def block_scheme(
    shape: tuple[int, ...], scales: tuple[int, ...], blocks: Blocks, *, is_exponent: bool
) -> BlockScaled | tuple[Block, Block] | None:
    """Return the block of elements that shares one scale: one of `blocks` that fits, else the only
    possible block. Return two blocks if several are possible. Return None if no block is possible.

    `shape` is the shape of the payload, and `scales` that of its scales.
    """
    whole = tuple(max(1, size) for size in shape)
    if all(size == 1 for size in scales):
        return BlockScaled(whole, (None,) * len(scales), is_exponent=is_exponent)
    if scales == shape[:1] and len(shape) == 2:
        return BlockScaled((1, whole[1]), (0,), is_exponent=is_exponent)
    if len(scales) != len(shape):
        return None
    rank = len(shape)
    named = blocks or (MX_BLOCKS if is_exponent else ())
    full = [(1,) * (rank - len(block)) + block for block in named if len(block) <= rank]
    fit = [tuple(map(min, block, whole)) for block in full if scale_shape(shape, block) == scales]
    is_plain = all(count in (1, size) for count, size in zip(scales, shape, strict=True))
    if not fit and (is_plain or not blocks):
        fit = _smallest_and_largest(shape, scales)
    different = list(dict.fromkeys(fit))
    if not different:
        return None
    first, *others = different
    if others:
        return first, others[-1]
    return BlockScaled(first, tuple(range(rank)), is_exponent=is_exponent)


def _smallest_and_largest(shape: tuple[int, ...], scales: tuple[int, ...]) -> list[Block]:
    """Return the smallest and the largest block with which a payload of `shape` has scales of the
    shape `scales`. Return an empty list if no block does.
    """
    least, most = [], []
    for size, count in zip(shape, scales, strict=True):
        if not min(1, size) <= count <= size:
            return []
        is_whole = count <= 1
        least.append(max(1, size) if is_whole else -(-size // count))
        most.append(max(1, size) if is_whole else -(-size // (count - 1)) - 1)
    found = [tuple(least), tuple(least if 0 in shape else most)]
    return found if scale_shape(shape, found[0]) == scales else []


def several_fit(
    key: Key, tensor: Tensor, scales: Key, held: Tensor, fit: Sequence[Block], *, is_named: bool
) -> UnprovedScales:
    """Return the record of a weight that cannot be dequantised, because several block sizes fit its
    shapes. `fit` has two of these sizes. `is_named` is True if the config names them."""
    first, last = ("x".join(map(str, block)) for block in fit)
    missing = (
        "config.json names both sizes; remove the wrong one from it"
        if is_named
        else (
            "nothing shows which size is right; put the config.json of this model, which "
            "has the block size, next to its weights"
        )
    )
    fits = (
        f"the block size of {key.name} is not clear: its shape {list(tensor.shape)} and the shape "
        f"{list(held.shape)} of {scales.name} fit blocks of {first} and blocks of {last}"
    )
    return UnprovedScales(fits, missing, (key, scales))


def wrong_shape(key: Key, tensor: Tensor, scales: Key, held: Tensor, blocks: Blocks) -> str:
    """Return a sentence with the shapes of a payload and of scales that do not fit each other."""
    tried = [each for each in blocks or USUAL_BLOCKS if len(each) == len(tensor.shape)]
    needed = " or ".join(
        f"{list(scale_shape(tensor.shape, block))} in blocks of {'x'.join(map(str, block))}"
        for block in tried
    )
    return (
        f"{scales.name} has shape {list(held.shape)}, but {key.name} of shape "
        f"{list(tensor.shape)} needs {needed or 'one for each row, or one'}"
    )


def _word(tensor: Tensor, scheme: BlockScaled) -> str:
    if scheme.is_exponent and tensor.dtype == dtypes.FLOAT8_E4M3FN and scheme.block[-1] == 32:
        return "mxfp8"
    return PAYLOADS[tensor.dtype]


def _extent(scheme: BlockScaled, shape: tuple[int, ...]) -> str:
    if all(axis is None for axis in scheme.axes):
        return "with one scale for each tensor"
    *rows, columns = scheme.block
    if columns >= shape[-1] and all(row == 1 for row in rows):
        return "with one scale for each row"
    if all(row == 1 for row in rows):
        return f"groups of {columns}"
    return f"blocks {'x'.join(map(str, scheme.block[-2:]))}"


_MX, _NV = 32, 16
_BLOCKS, _SCALES, _PACKED, _WEIGHT = "_blocks", "_scales", ".weight_packed", ".weight"


def four_bits(
    key: Key, tensor: Tensor, tensors: Mapping[Key, Tensor]
) -> QuantisedWeight | str | None:
    """Return the quantised weight with the `uint8` payload `key`, or a sentence if the weight has a
    fault. Return None if `key` is not the payload of a 4-bit weight."""
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
            f"{scales.name} has shape {list(held.shape)}, and {key.name} has shape {list(shape)}: "
            "they should be (experts, rows, groups) and (experts, rows, groups, 16)"
        )
    experts, rows, groups, _ = shape
    scheme = PackedFourBit(_MX, is_exponent=True, blocks=True, transposed=True)
    new = Key(key.name.removesuffix(_BLOCKS), key.role)
    inputs = {PAYLOAD: (key, tensor), SCALES: (scales, held)}
    return quantised_weight(
        new, f"mxfp4 groups of {_MX}", (experts, groups * _MX, rows), scheme, inputs
    )


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
    scheme = PackedFourBit(group, is_exponent=is_exponent, is_divided=is_divided)
    kind = f"{'mxfp4' if is_exponent else 'nvfp4'} groups of {group}"
    return quantised_weight(Key(f"{stem}.weight", key.role), kind, shape, scheme, inputs)


def as_vector(one: Tensor) -> Tensor:
    """Return a tensor of one element as a tensor of shape (1)."""
    vector = Box((0,), (1,))
    return Tensor(one.dtype, (1,), [replace(c, box=vector, strides=None) for c in one.chunks])
