"""Computes the values of quantised tensors from payload and scales, and the reverse.

Everything is computed in float32 with one rounding for each product, as the libraries of the
formats do on a CPU. So after a cast, the result equals theirs bit for bit. Bytes are converted to
values by lookup tables. One lookup converts two elements: two bytes, or one byte that holds two
4-bit elements.

    fp8     value = payload x scale                        DeepSeek-V3, transformers, MXFP8
    NVFP4   value = E2M1 x (scale / global scale)          compressed-tensors
            value = E2M1 x (scale x global scale)          ModelOpt
    nf4     value = code[index] x absmax                   bitsandbytes

The reverse, for each block, with amax = the largest magnitude in the block:

    s = 448 / amax, or 1 if amax is 0;   payload = E4M3(value x s);   scale = 1 / s

`to_e4m3` converts float32 by its bits, about eight times faster than ml_dtypes. A normal number
keeps the upper 3 bits of its mantissa. To round it, just less than half of the removed part is
added, and 1 more if the last kept bit is odd. The bias of its exponent becomes 7 instead of 127.
Below 2**-6 all E4M3 numbers are multiples of 2**-9. Adding 2**14 in float32 rounds to such a
multiple, and leaves the number of multiples in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from zerotools.core import quantisation_schemes
from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.scaled_cast import Scheme
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype

Inputs = Mapping[str, Array]
_OPERATIONS = {"*": np.multiply, "/": np.divide, "+": np.add, "-": np.subtract}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST = 448.0
_LARGEST_RECIPROCAL = 2.0**126
"""The reciprocals of scales are limited to this value. A larger reciprocal would be infinite, or
belong to a scale that is not a normal number.
"""
_STEP = 2**13
"""The number of elements that are looked up in a table at once. For each of them, numpy makes an
index of 8 bytes.
"""


def values_of(scheme: Scheme, box: Box, inputs: Inputs, result: DType) -> Array:
    """Return the elements of `box` as float32, or, if the scheme quantises values, in the dtype
    `result`.

    `inputs` are the blocks that `scheme.needs(box)` lists, unchanged from their files.

    Raises:
        BadFile: a scale is not finite, a scale is 0 although its elements are not, or a value to
            quantise is not finite. The message does not name the tensor.
    """
    if isinstance(scheme, quantisation_schemes.BlockScaled):
        return _block_scaled(scheme, box, inputs)
    if isinstance(scheme, quantisation_schemes.Arithmetic):
        return _arithmetic(scheme, box, inputs[quantisation_schemes.PAYLOAD])
    if isinstance(scheme, quantisation_schemes.PackedFourBit):
        return _packed_fours(scheme, box, inputs)
    if isinstance(scheme, quantisation_schemes.CodedFourBit):
        return _coded_fours(scheme, box, inputs)
    assert isinstance(scheme, quantisation_schemes.BlockQuantised), f"nothing computes {scheme}"
    return _quantised(scheme, box, inputs[quantisation_schemes.VALUES], result)


def _arithmetic(scheme: quantisation_schemes.Arithmetic, box: Box, payload: Array) -> Array:
    values = _floats(payload, is_exponent=False)
    made: Array = _OPERATIONS[scheme.operation](values, np.float32(scheme.number))
    if scheme.zeros_from is not None:
        made[max(0, scheme.zeros_from - box.start[0]) :] = 0
    return made


def _block_scaled(scheme: quantisation_schemes.BlockScaled, box: Box, inputs: Inputs) -> Array:
    payload = np.ascontiguousarray(inputs[quantisation_schemes.PAYLOAD])
    scales = _floats(inputs[quantisation_schemes.SCALES], scheme.is_exponent)
    axes = [axis for axis in scheme.axes if axis is not None]
    shape = [1] * len(box.shape)
    for axis in axes:
        shape[axis] = scales.shape[scheme.axes.index(axis)]
    scales = scales.reshape(shape)
    for axis, block in enumerate(scheme.block[:-1]):
        if axis in axes and block > 1:
            scales = scales.take(_block_numbers(box, axis, block), axis)
    values = _looked_up(payload)
    _scale(values, scales, box.start[-1] if box.start else 0, scheme.block[-1:])
    if scheme.factor != 1.0:
        values *= np.float32(scheme.factor)
    return values


def _scale(values: Array, scales: Array, start: int, block: tuple[int, ...]) -> None:
    """Multiply values by their scales as `_times` does. Raises BadFile if elements other than 0
    become 0 because their scale is 0."""
    before = None if scales.all() else np.count_nonzero(values)
    _times(values, scales, start, block)
    if before is not None and np.count_nonzero(values) < before:
        raise BadFile("has a scale of 0 for elements that are not 0")


def _packed_fours(scheme: quantisation_schemes.PackedFourBit, box: Box, inputs: Inputs) -> Array:
    rows = scheme.in_payload_order(box)
    payload = inputs[quantisation_schemes.PAYLOAD]
    if scheme.blocks:
        payload = payload.reshape(*payload.shape[:-2], -1)
    scales = _floats(inputs[quantisation_schemes.SCALES], scheme.is_exponent)
    if not scheme.is_exponent:
        whole = _floats(inputs[quantisation_schemes.GLOBAL_SCALE], is_exponent=False)
        if not whole.all():
            raise BadFile("has a global scale of 0")
        scales = scales / whole if scheme.is_divided else scales * whole
    values = _pairs(_e2m1(), np.ascontiguousarray(payload))
    read = scheme.group if scheme.blocks else quantisation_schemes.PER_BYTE
    before = rows.start[-1] % read
    values = values[..., before : before + rows.shape[-1]]
    _scale(values, scales, rows.start[-1], (scheme.group,))
    return values.swapaxes(-1, -2) if scheme.transposed else values


def _coded_fours(scheme: quantisation_schemes.CodedFourBit, box: Box, inputs: Inputs) -> Array:
    begin, end = scheme.covering_range(box)
    code = _floats(inputs[quantisation_schemes.CODE], is_exponent=False)
    if scheme.is_signed and code[8] == 0:
        code = code.copy()
        code[8] = -0.0
    scales = inputs[quantisation_schemes.SCALES]
    first = begin // scheme.block
    if scheme.nested_block:
        nested = _floats(inputs[quantisation_schemes.NESTED_SCALES], is_exponent=False)
        scales = _floats(inputs[quantisation_schemes.NESTED_CODE], is_exponent=False)[scales]
        _times(scales, nested, first, (scheme.nested_block,))
        scales = scales + np.float32(scheme.offset)
    table = np.stack([np.repeat(code, 16), np.tile(code, 16)], axis=-1)
    values = _pairs(table, inputs[quantisation_schemes.PAYLOAD].reshape(-1))
    _times(values, _floats(scales, is_exponent=False), begin, (scheme.block,))
    strides = row_major_strides(scheme.shape)
    start = sum(a * s for a, s in zip(box.start, strides, strict=True)) - begin
    steps = tuple(4 * s for s in strides)
    assert end - begin <= values.size
    return np.ndarray(box.shape, np.float32, values.data, 4 * start, steps)


def _quantised(
    scheme: quantisation_schemes.BlockQuantised, box: Box, given: Array, result: DType
) -> Array:
    values = given.astype(np.float32)
    read = scheme.needs(box)[quantisation_schemes.VALUES]
    met = quantisation_schemes.blocks_of(read, scheme.block)
    largest = _largest_of_blocks(values, scheme.block)
    if not np.isfinite(largest).all():
        raise BadFile(f"has NaN or infinite values, which {result} with scales cannot hold")
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.minimum(
            np.float32(1) / largest * np.float32(_LARGEST), np.float32(_LARGEST_RECIPROCAL)
        )
    factors[largest == 0] = 1
    inverse = np.float32(1) / factors
    if scheme.is_exponent:
        exponents = np.ceil(np.log2(inverse.astype(np.float64)).astype(np.float32))
        if scheme.is_scales:
            return (exponents + 127).astype(np.uint8)
        factors = np.ldexp(np.float32(1), -exponents.astype(np.int32))
    elif scheme.is_scales:
        return inverse
    assert met.shape == factors.shape
    for axis, block in enumerate(scheme.block[:-1]):
        if block > 1:
            factors = factors.take(_block_numbers(read, axis, block), axis)
    _times(values, factors, read.start[-1], scheme.block[-1:])
    np.clip(values, -_LARGEST, _LARGEST, out=values)
    inside = box.relative_to(read)
    wanted = values[tuple(map(slice, inside.start, inside.stop))]
    found: Array = to_e4m3(np.ascontiguousarray(wanted)).view(numpy_dtype(result))
    return found


def _largest_of_blocks(values: Array, block: tuple[int, ...]) -> Array:
    """Return the largest magnitude in each block of `values`; NaN for a block that contains NaN.
    The first value is at the beginning of a block."""
    found: Array = np.abs(values)
    for axis, size in enumerate(block):
        if size > 1 and axis < values.ndim - 1:  # whole rows at once, which is much faster
            starts = range(0, values.shape[axis], size)
            before = (slice(None),) * axis
            found = np.stack(
                [found[(*before, slice(at, at + size))].max(axis) for at in starts], axis
            )
        elif size > 1:
            found = np.maximum.reduceat(found, np.arange(0, values.shape[axis], size), axis)
    return found


def _block_numbers(box: Box, axis: int, block: int) -> Array:
    """Return the number of the block for each index of `box` along `axis`, counted from the first
    block that the box touches.
    """
    start, count = box.start[axis], box.shape[axis]
    numbers: Array = np.arange(start, start + count) // block - start // block
    return numbers


def _times(values: Array, scales: Array, start: int, block: tuple[int, ...]) -> None:
    """Multiply `values` in place by one scale for each block along the last dimension, or by one
    scale for all.

    `start` is the index of the first value along that dimension.
    """
    if not block or scales.shape[-1] == 1:
        values *= scales
        return
    (size,) = block
    columns = values.shape[-1]
    head = min(columns, -start % size)
    if head:
        values[..., :head] *= scales[..., :1]
        scales = scales[..., 1:]
    whole = (columns - head) // size
    if whole:
        middle = values[..., head : head + whole * size]
        view = np.lib.stride_tricks.as_strided(
            middle,
            (*middle.shape[:-1], whole, size),
            (*middle.strides[:-1], size * middle.strides[-1], middle.strides[-1]),
        )
        view *= scales[..., :whole, None]
    if head + whole * size < columns:
        values[..., head + whole * size :] *= scales[..., whole : whole + 1]


def _floats(scales: Array, is_exponent: bool) -> Array:
    """Return the scales as float32. Raises BadFile if a scale is not finite."""
    if is_exponent:
        exponents = scales.view(np.uint8)
        if exponents.size and int(exponents.max()) == 255:
            raise BadFile("has a scale that is not a number (the byte 255)")
        return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    floats = np.asarray(scales, np.float32)
    if not np.isfinite(floats).all():
        raise BadFile("has a scale that is not finite")
    return floats


def _looked_up(payload: Array) -> Array:
    """Convert elements of an 8-bit dtype to float32 by a table. The shape stays the same."""
    flat = payload.reshape(-1)
    values = np.empty(flat.shape, np.float32)
    even = flat.size // 2 * 2
    raw, pairs = flat.view(np.uint8)[:even].view(np.uint16), values[:even].view(np.complex64)
    table = _pairs_of_type(payload.dtype)
    for begin in range(0, raw.size, _STEP):
        step = slice(begin, begin + _STEP)
        np.take(table, raw[step], out=pairs[step], mode="wrap")
    values[even:] = flat[even:].astype(np.float32)
    return values.reshape(payload.shape)


@cache
def _pairs_of_type(element: np.dtype[np.generic]) -> Array:
    """Return a table with the two float32 values of each pair of bytes, stored as one complex
    number.
    """
    single = np.arange(256, dtype=np.uint8).view(element).astype(np.float32)
    both = single[np.arange(2**16, dtype="<u2").view(np.uint8).reshape(-1, 2)]
    pairs: Array = both.view(np.complex64).reshape(-1)
    return pairs


@cache
def _e2m1() -> Array:
    """Return a table with the two E2M1 values in each byte. The value of the low bits comes
    first.
    """
    single = np.array([*_E2M1, *(-value for value in _E2M1)], np.float32)
    return np.stack([np.tile(single, 16), np.repeat(single, 16)], axis=-1)


def _pairs(table: Array, payload: Array) -> Array:
    """Look up the two values of each byte in `table`, and return them side by side along the last
    dimension.
    """
    flat = payload.reshape(-1)
    values = np.empty((flat.size, 2), np.float32)
    pairs = np.ascontiguousarray(table).view(np.complex64).reshape(-1)
    for begin in range(0, flat.size, _STEP):
        step = slice(begin, begin + _STEP)
        np.take(pairs, flat[step], out=values[step].view(np.complex64)[:, 0], mode="wrap")
    return values.reshape(*payload.shape[:-1], 2 * payload.shape[-1])


_CUT, _MAGNITUDE, _SIGN = 20, 0x7FFFFFFF, 0x80
_ROUND = ((1 << (_CUT - 1)) - 1 - ((127 - 7) << 23)) % 2**32
_LEAST_NORMAL = 0x3C800000
"""The bits of 2**-6 as float32, the smallest normal number of E4M3."""
_MAGIC = np.float32(2**14)


def to_e4m3(values: Array) -> Array:
    """Convert float32 `values` to E4M3, rounded to nearest even, and return the bytes (uint8).

    The values must be contiguous, finite, and at most 448 in magnitude. The conversion takes 8
    bytes of memory for each value.
    """
    bits = values.view(np.uint32)
    magnitudes = bits & np.uint32(_MAGNITUDE)
    rounded = magnitudes >> np.uint32(_CUT)
    rounded &= np.uint32(1)
    rounded += magnitudes
    rounded += np.uint32(_ROUND)
    rounded >>= np.uint32(_CUT)
    is_small = magnitudes < np.uint32(_LEAST_NORMAL)
    counts = magnitudes.view(np.float32)
    counts += _MAGIC
    magnitudes -= _MAGIC.view(np.uint32)
    np.copyto(rounded, magnitudes, where=is_small)
    found: Array = rounded.astype(np.uint8)
    signs = (bits >> np.uint32(24)).astype(np.uint8)
    signs &= np.uint8(_SIGN)
    found |= signs
    return found
