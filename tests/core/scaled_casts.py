"""Scaled casts of every scheme, in small shapes, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import DType
from zerotools.core.quantisation_schemes import (
    CODE,
    GLOBAL_SCALE,
    NESTED_CODE,
    NESTED_SCALES,
    PAYLOAD,
    SCALES,
    VALUES,
    BlockQuantised,
    BlockScaled,
    CodedFourBit,
    PackedFourBit,
    scale_shape,
)
from zerotools.core.scaled_cast import ScaledCast, Scheme

U8, F32, E4M3 = dtypes.UINT8, dtypes.FLOAT32, dtypes.FLOAT8_E4M3FN
Inputs = dict[str, tuple[DType, tuple[int, ...]]]


def made(dtype: DType, shape: tuple[int, ...], scheme: Scheme, inputs: Inputs) -> ScaledCast:
    tensors = {name: Tensor(kind, size, ()) for name, (kind, size) in inputs.items()}
    return ScaledCast(dtype, shape, (), scheme, tensors)


@st.composite
def _blocks(draw: st.DrawFn) -> ScaledCast:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    block = tuple(draw(st.integers(1, 4)) for _ in shape)
    if draw(st.booleans()):
        size = scale_shape(shape, block)
        scheme = BlockScaled(block, tuple(range(len(shape))), is_exponent=draw(st.booleans()))
    elif draw(st.booleans()):
        size, scheme = (1,), BlockScaled(shape, (None,), factor=0.5)
    else:
        size, scheme = shape[:1], BlockScaled((1, *shape[1:]), (0,))
    kind = U8 if scheme.is_exponent else F32
    return made(F32, shape, scheme, {PAYLOAD: (E4M3, shape), SCALES: (kind, size)})


@st.composite
def _packed(draw: st.DrawFn) -> ScaledCast:
    rows, group = draw(st.integers(1, 5)), draw(st.sampled_from([4, 6]))
    if draw(st.booleans()):
        groups, experts = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        mx = PackedFourBit(group, is_exponent=True, blocks=True, transposed=True)
        inputs: Inputs = {
            PAYLOAD: (U8, (experts, rows, groups, group // 2)),
            SCALES: (U8, (experts, rows, groups)),
        }
        return made(F32, (experts, groups * group, rows), mx, inputs)
    columns = 2 * draw(st.integers(1, 7))
    is_exponent = draw(st.booleans())
    scheme = PackedFourBit(group, is_exponent=is_exponent, is_divided=draw(st.booleans()))
    inputs = {
        PAYLOAD: (U8, (rows, columns // 2)),
        SCALES: (U8 if is_exponent else F32, (rows, -(-columns // group))),
    }
    if not is_exponent:
        inputs[GLOBAL_SCALE] = (F32, (1,))
    return made(F32, (rows, columns), scheme, inputs)


@st.composite
def _coded(draw: st.DrawFn) -> ScaledCast:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    block = draw(st.sampled_from([2, 4, 8]))
    count = Box.whole(shape).numel
    blocks = -(-count // block)
    inputs: Inputs = {PAYLOAD: (U8, (-(-count // 2), 1)), CODE: (F32, (16,))}
    if draw(st.booleans()):
        inputs |= {SCALES: (F32, (blocks,))}
        return made(F32, shape, CodedFourBit(shape, block), inputs)
    nested = draw(st.sampled_from([2, 4]))
    inputs |= {
        SCALES: (U8, (blocks,)),
        NESTED_SCALES: (F32, (-(-blocks // nested),)),
        NESTED_CODE: (F32, (256,)),
    }
    return made(F32, shape, CodedFourBit(shape, block, nested, 0.25), inputs)


@st.composite
def _quantised(draw: st.DrawFn) -> ScaledCast:
    block = (draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    shape = (draw(st.integers(1, 8)), draw(st.integers(1, 9)))
    is_exponent, is_scales = draw(st.booleans()), draw(st.booleans())
    scheme = BlockQuantised(shape, block, is_scales, is_exponent)
    size = scale_shape(shape, block) if is_scales else shape
    dtype = (U8 if is_exponent else F32) if is_scales else E4M3
    return made(dtype, size, scheme, {VALUES: (F32, shape)})


drawn_casts = st.one_of(_blocks(), _packed(), _coded(), _quantised())


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A box that is not empty."""
    start = tuple(draw(st.integers(0, size - 1)) for size in shape)
    sizes = tuple(draw(st.integers(1, n - a)) for n, a in zip(shape, start, strict=True))
    return Box(start, sizes)
