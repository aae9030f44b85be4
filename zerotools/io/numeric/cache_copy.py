"""Copies between arrays with elements in different orders, at the speed of the memory.

A transposed array is copied in blocks that fit into a processor's cache. If two or four elements
are adjacent in one array and far apart in the other, such as alternating gate and up, they are
moved together, as one wider element: a block of these is made in the cache, and then transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zerotools.io.numeric.numpy_dtypes import NO_LOSSES, Array, Cast, CastLosses, cast_into

_BLOCK = 128
_SMALL = 64 * 1024
_WORDS = {4: np.uint32, 8: np.uint64}
_PLAIN = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


def cast_ordered(out: Array, values: Array, cast: Cast) -> CastLosses:
    """Do the same as `cast_into`, for arrays of any strides."""
    if out.dtype == values.dtype and out.itemsize in _PLAIN:
        plain: Any = _PLAIN[out.itemsize]  # numpy copies bfloat16 and its like element by element
        out, values = out.view(plain), values.view(plain)
    wide = [dim for dim in range(out.ndim) if out.shape[dim] > 1]
    if values.nbytes <= _SMALL or len(wide) < 2:
        return cast_into(out, values, cast)
    ours, theirs = (
        sorted(wide, key=lambda dim: abs(strides[dim])) for strides in (out.strides, values.strides)
    )
    if ours[0] == theirs[0]:
        return cast_into(out, values, cast)
    copied = _copy_of(out, values, ours[0], theirs[0])
    losses = NO_LOSSES
    for index in _blocks(out.shape, (ours, theirs)):
        if copied is None:
            losses += cast_into(out[index], values[index], cast)
        else:
            _copy_words(out[index], values[index], *copied)
    return losses


def _copy_of(out: Array, values: Array, ours: int, theirs: int) -> tuple[int, bool] | None:
    """Return the dimension with elements that form one word together, and whether it is in `out`,
    not in `values`."""
    if out.dtype == values.dtype:
        for array, dim, is_out in ((out, ours, True), (values, theirs, False)):
            nbytes = array.shape[dim] * array.itemsize
            if nbytes in _WORDS and array.strides[dim] == array.itemsize:
                return dim, is_out
    return None


def _blocks(shape: Sequence[int], orders: Sequence[Sequence[int]]) -> Iterator[tuple[slice, ...]]:
    """Yield blocks that have runs of neighbours in either order of dimensions."""
    sizes = [1] * len(shape)
    for order in orders:
        left = _BLOCK
        for dim in order:
            taken = min(shape[dim], max(1, left))
            sizes[dim] = max(sizes[dim], taken)
            left //= taken
    for start in np.ndindex(*(-(-n // size) for n, size in zip(shape, sizes, strict=True))):
        yield tuple(
            slice(number * size, (number + 1) * size)
            for number, size in zip(start, sizes, strict=True)
        )


def _copy_words(out: Array, values: Array, dim: int, is_out: bool) -> None:
    """Copy a block; the elements along `dim` are words of `out`, or of `values`."""
    narrow, words = (values, out) if is_out else (out, values)
    order = sorted(range(out.ndim), key=lambda each: (each == dim, -abs(narrow.strides[each])))
    block = np.empty([out.shape[each] for each in order], out.dtype)
    same = block.transpose(np.argsort(order))
    word = _WORDS[out.shape[dim] * out.itemsize]
    in_block = np.moveaxis(same, dim, -1).view(word)
    in_words = np.moveaxis(words, dim, -1).view(word)
    if is_out:
        _copy_each(same, values, dim)
        np.copyto(in_words, in_block)
    else:
        np.copyto(in_block, in_words)
        _copy_each(out, same, dim)


def _copy_each(into: Array, values: Array, dim: int) -> None:
    """Copy index by index along `dim`."""
    for number in range(values.shape[dim]):
        index: tuple[Any, ...] = (*(slice(None) for _ in range(dim)), number)
        np.copyto(into[index], values[index])
