"""Schemes of quantised weights: the payload elements and the scale from which each element of a
weight is computed.

Only positions are computed here, no values. Sources: DeepSeek-V3 `inference/kernel.py`
(`weight_dequant`), OCP Microscaling Formats (MX) v1.0, transformers `integrations/mxfp4.py`
(`convert_moe_packed_tensors`), compressed-tensors `quantization/lifecycle/forward_helpers.py`,
bitsandbytes `functional.py` (`QuantState`).
"""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.scaled_cast import Scheme

PAYLOAD, SCALES, GLOBAL_SCALE = "payload", "scales", "global scale"
CODE, NESTED_SCALES, NESTED_CODE = "code", "nested scales", "nested code"
VALUES = "values"
PER_BYTE = 2
"""The number of 4-bit elements in a byte."""


def blocks_of(box: Box, block: tuple[int, ...]) -> Box:
    """Return the scales that the elements of `box` need, as a box in the tensor of scales. One
    scale belongs to a block of the shape `block`, in elements.
    """
    start = tuple(a // b for a, b in zip(box.start, block, strict=True))
    stop = (-(-end // b) for end, b in zip(box.stop, block, strict=True))
    return Box(start, tuple(b - a for a, b in zip(start, stop, strict=True)))


@dataclass(frozen=True, slots=True)
class Arithmetic(Scheme):
    """The float32 result of an operation on the payload and a number, such as `payload * 8`, for a
    weight that a program stores scaled or shifted.

    For example, MaxText stores the query projection divided by the square root of the head size.

    Attributes:
        operation: "*", "/", "+" or "-".
        number: the second operand, rounded to float32.
        zeros_from: the rows from this index on are 0, whatever the payload is; None: no rows are 0.
    """

    operation: str
    number: float
    zeros_from: int | None = None

    def needs(self, box: Box) -> dict[str, Box]:
        return {PAYLOAD: box}


@dataclass(frozen=True, slots=True)
class BlockScaled(Scheme):
    """payload x scale x `factor`, with one scale for each block of shape `block`. Blocks at the
    edges may be smaller.

    Attributes:
        axes: for each dimension of the scales, the corresponding dimension of the weight; None if
            the dimension has length 1 and no counterpart. Scales of shape (R, 1), one for each row,
            have axes (0, None).
        is_exponent: True if each scale is stored as a byte e that means 2 ** (e - 127).
    """

    block: tuple[int, ...]
    axes: tuple[int | None, ...]
    factor: float = 1.0
    is_exponent: bool = False

    def work_bytes(self, box: Box) -> int:
        return 6 * box.numel

    def needs(self, box: Box) -> dict[str, Box]:
        met = blocks_of(box, self.block)
        start = tuple(0 if axis is None else met.start[axis] for axis in self.axes)
        shape = tuple(1 if axis is None else met.shape[axis] for axis in self.axes)
        return {PAYLOAD: box, SCALES: Box(start, shape)}


@dataclass(frozen=True, slots=True)
class PackedFourBit(Scheme):
    """4-bit floats (E2M1), two in a byte of the payload, low bits first, with one scale for each
    `group` of elements in a row.

    Scales are exponents as in `BlockScaled`, or floats that are divided or multiplied by a global
    scale.

    Attributes:
        blocks: True if the payload has a separate dimension for the bytes of a group.
        transposed: True if the last two dimensions of the result are exchanged. gpt-oss stores
            (experts, rows, groups, 16) for a tensor that has shape (experts, columns, rows) in the
            model.
    """

    group: int
    is_exponent: bool
    is_divided: bool = False
    blocks: bool = False
    transposed: bool = False

    @property
    def is_transposed(self) -> bool:
        return self.transposed

    @property
    def smallest_block(self) -> tuple[int, ...]:
        return (self.group, 1) if self.transposed else (self.group,)

    def work_bytes(self, box: Box) -> int:
        return 8 * PER_BYTE * self.needs(box)[PAYLOAD].numel

    def in_payload_order(self, box: Box) -> Box:
        """Return a box of the result with its dimensions in the payload's order, where the packed
        dimension is last.
        """
        return _exchanged(box) if self.transposed else box

    def needs(self, box: Box) -> dict[str, Box]:
        rows = self.in_payload_order(box)
        *start, first = rows.start
        *shape, _ = rows.shape
        packed = self.group // PER_BYTE
        groups = blocks_of(rows, (*(1,) * len(start), self.group))
        low, high = first // PER_BYTE, -(-rows.stop[-1] // PER_BYTE)
        payload = Box((*start, low), (*shape, high - low))
        if self.blocks:
            payload = Box((*groups.start, 0), (*groups.shape, packed))
        found = {PAYLOAD: payload, SCALES: groups}
        if not self.is_exponent:
            found[GLOBAL_SCALE] = Box((0,), (1,))
        return found


@dataclass(frozen=True, slots=True)
class CodedFourBit(Scheme):
    """bitsandbytes' nf4 and fp4: the flattened tensor of `shape`, two elements in a byte, high bits
    first.

    An element is code[index] x absmax, with one absmax for each block of `block` elements. With
    `nested_block`, each absmax is stored as a byte: absmax = nested code[byte] x nested absmax of
    its block + `offset`. With `is_signed` (fp4), the high bit of an index is a sign, so index 8
    means -0.0. This differs from the stored code, which has 0.0 at index 8: bitsandbytes' kernels
    do not read the stored code.
    """

    shape: tuple[int, ...]
    block: int
    nested_block: int = 0
    offset: float = 0.0
    is_signed: bool = False

    @property
    def smallest_block(self) -> tuple[int, ...]:
        return (PER_BYTE,)

    def work_bytes(self, box: Box) -> int:
        begin, end = self.covering_range(box)
        return 8 * (end - begin)

    def covering_range(self, box: Box) -> tuple[int, int]:
        """Return the smallest flat range that begins at an even element and contains the first and
        the last element of `box`.
        """
        strides = row_major_strides(self.shape)
        first = sum(a * s for a, s in zip(box.start, strides, strict=True))
        last = sum((a - 1) * s for a, s in zip(box.stop, strides, strict=True))
        return first // PER_BYTE * PER_BYTE, last + 1

    def needs(self, box: Box) -> dict[str, Box]:
        begin, end = self.covering_range(box)
        payload = _flat(begin // PER_BYTE, -(-end // PER_BYTE))
        scales = _flat(begin // self.block, -(-end // self.block))
        found = {
            PAYLOAD: Box((*payload.start, 0), (*payload.shape, 1)),
            SCALES: scales,
            CODE: _flat(0, 16),
        }
        if self.nested_block:
            (low,), (high,) = scales.start, scales.stop
            found[NESTED_SCALES] = _flat(low // self.nested_block, -(-high // self.nested_block))
            found[NESTED_CODE] = _flat(0, 256)
        return found


@dataclass(frozen=True, slots=True)
class BlockQuantised(Scheme):
    """The reverse of `BlockScaled`: a payload of 8-bit floats, computed from a tensor of values
    with shape `shape`.

    With `is_scales`, the result is the scales instead of the payload. With `is_exponent`, scales
    are powers of two, stored as bytes (see `BlockScaled`).
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]
    is_scales: bool
    is_exponent: bool = False

    def work_bytes(self, box: Box) -> int:
        return 16 * self.needs(box)[VALUES].numel

    @property
    def smallest_block(self) -> tuple[int, ...]:
        return () if self.is_scales else self.block

    def needs(self, box: Box) -> dict[str, Box]:
        met = box if self.is_scales else blocks_of(box, self.block)
        start = tuple(a * b for a, b in zip(met.start, self.block, strict=True))
        stop = tuple(
            min(end * b, size)
            for end, b, size in zip(met.stop, self.block, self.shape, strict=True)
        )
        return {VALUES: Box(start, tuple(b - a for a, b in zip(start, stop, strict=True)))}


def scale_shape(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the tensor of scales. Each block has one scale, including smaller blocks
    at the edges.
    """
    return tuple(-(-size // b) for size, b in zip(shape, block, strict=True))


def _flat(begin: int, end: int) -> Box:
    return Box((begin,), (end - begin,))


def _exchanged(box: Box) -> Box:
    *start, row, column = box.start
    *shape, rows, columns = box.shape
    return Box((*start, column, row), (*shape, columns, rows))
