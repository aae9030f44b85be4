"""What a view makes of arrays, element by element as its pieces say; and random views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from zerotools.maps.views import (
    View,
    ViewPiece,
    concatenated,
    narrowed_view,
    stacked_view,
    transposed_view,
    whole_view,
)


def numbered(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays in which no number is twice."""
    first, arrays = 0, []
    for shape in shapes:
        count = int(np.prod(shape))
        arrays.append(np.arange(first, first + count).reshape(shape))
        first += count
    return arrays


def filled(shape: tuple[int, ...], pieces: Sequence[ViewPiece], arrays: Sequence[np.ndarray]):
    """The array of `shape` that the pieces fill; what none of them fills is -1."""
    made = np.full(shape, -1)
    for piece in pieces:
        for inside in np.ndindex(piece.box.shape):
            at = list(piece.start)
            for dim, index in enumerate(inside):
                if piece.dims[dim] >= 0:
                    at[piece.dims[dim]] += index * piece.steps[dim]
            place = tuple(a + b for a, b in zip(piece.box.start, inside, strict=True))
            assert made[place] == -1, "two pieces fill one element"
            made[place] = arrays[piece.source][tuple(at)]
    return made


def viewed(view: View, arrays: Sequence[np.ndarray]):
    made = filled(view.shape, view.pieces, arrays)
    assert (made >= 0).all(), "an element is filled by no piece"
    return made


@st.composite
def made_views(draw: st.DrawFn) -> tuple[View, list[tuple[int, ...]], np.ndarray]:
    """A view that uses every source once, with the array that numpy makes of the same."""
    rows = draw(st.integers(1, 3))
    shapes = [(2 * rows, 2 * draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 3)))]
    arrays = numbered(*shapes)
    if len(shapes) > 1 and len(set(shapes)) == 1 and draw(st.booleans()):
        view = stacked_view([whole_view(n, shape) for n, shape in enumerate(shapes)])
        array = np.stack(arrays)
    else:
        view = concatenated([whole_view(n, shape) for n, shape in enumerate(shapes)], 1)
        array = np.concatenate(arrays, 1)
    for _ in range(draw(st.integers(0, 4))):
        view, array = draw(st.sampled_from([_swapped, _halved, _paired]))(draw, view, array)
    return view, shapes, array


def _swapped(draw: st.DrawFn, view: View, array: np.ndarray) -> tuple[View, np.ndarray]:
    first, second = (draw(st.integers(0, array.ndim - 1)) for _ in range(2))
    return transposed_view(view, first, second), array.swapaxes(first, second)


def _halved(draw: st.DrawFn, view: View, array: np.ndarray) -> tuple[View, np.ndarray]:
    """Cut in two at any place, and joined the other way round."""
    dim = draw(st.integers(0, array.ndim - 1))
    at = draw(st.integers(0, array.shape[dim]))
    parts = [narrowed_view(view, dim, at, array.shape[dim] - at), narrowed_view(view, dim, 0, at)]
    return concatenated(parts, dim), np.roll(array, -at, dim)


def _paired(draw: st.DrawFn, view: View, array: np.ndarray) -> tuple[View, np.ndarray]:
    """Every second index first."""
    dim = draw(st.integers(0, array.ndim - 1))
    size = array.shape[dim]
    parts = [narrowed_view(view, dim, n, len(range(n, size, 2)), 2) for n in range(min(2, size))]
    index = [*range(0, size, 2), *range(1, size, 2)]
    return concatenated(parts, dim), array.take(index, dim)
