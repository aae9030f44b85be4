"""Convert tensor expressions to views, once indices and sizes are known.

The expressions of a model's layers differ only in the names of tensors. So an expression is first
bound to shapes and sizes, and its tensor names are replaced by numbers. Bound expressions that are
equal are then converted and proved only once (`view_of`, `inverses_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from zerotools.core.errors import BadRequest
from zerotools.maps.views import (
    View,
    ViewPiece,
    concatenated,
    indexed_view,
    inverse_pieces,
    narrowed_view,
    padded_view,
    stacked_view,
    transposed_view,
    whole_view,
)

Shape = tuple[int, ...]
_MOST_BLOCKS = 2**16
_MOST_ROWS = 2**20


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """A tensor in an expression: its number in the expression, and its shape."""

    number: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class BoundOperation:
    """An operation with its sizes replaced by numbers."""

    word: str
    parts: tuple[BoundExpression, ...]
    sizes: tuple[int, ...]


BoundExpression = BoundTensor | BoundOperation


@lru_cache(maxsize=1024)
def view_of(bound: BoundExpression) -> View:
    """Return the view that a bound expression describes.

    Raises:
        BadRequest: the shapes and sizes in the expression do not fit together.
    """
    if isinstance(bound, BoundTensor):
        return whole_view(bound.number, bound.shape)
    return _MADE[bound.word]([view_of(part) for part in bound.parts], bound.sizes)


@lru_cache(maxsize=1024)
def inverses_of(bound: BoundExpression) -> tuple[tuple[ViewPiece, ...], ...]:
    """Return, for each tensor of the expression, the pieces that fill this tensor from the view."""
    shapes = dict(_shapes(bound))
    ranks = [len(shapes[number]) for number in range(len(shapes))]
    return tuple(inverse_pieces(view_of(bound), ranks))


def _shapes(bound: BoundExpression) -> list[tuple[int, Shape]]:
    if isinstance(bound, BoundTensor):
        return [(bound.number, bound.shape)]
    return [each for part in bound.parts for each in _shapes(part)]


def _dim(view: View, dim: int, word: str) -> int:
    if dim >= len(view.shape):
        raise BadRequest(
            f"{word}(...) uses dimension {dim}, but its tensor has the shape {list(view.shape)}"
        )
    return dim


def _concat(views: Sequence[View], sizes: Sequence[int]) -> View:
    dim = _dim(views[0], sizes[0], "concat")
    _check_alike("concat", views, dim)
    return concatenated(views, dim)


def _check_alike(word: str, views: Sequence[View], dim: int) -> None:
    """Check that the shapes are equal in all dimensions except `dim` (-1: in all dimensions)."""

    def others(shape: Shape) -> Shape:
        return shape if dim < 0 else (*shape[:dim], -1, *shape[dim + 1 :])

    first = views[0].shape
    for view in views:
        if others(view.shape) != others(first):
            raise BadRequest(
                f"{word}(...) cannot join tensors of the shapes {list(first)} and "
                f"{list(view.shape)}: another dimension than the joined one differs"
            )


def _part(views: Sequence[View], sizes: Sequence[int]) -> View:
    dim, begin, end = _dim(views[0], sizes[0], "part"), sizes[1], sizes[2]
    if not begin <= end <= views[0].shape[dim]:
        raise BadRequest(
            f"part(...) takes [{begin}, {end}) of dimension {dim}, but this dimension has length "
            f"{views[0].shape[dim]}"
        )
    return narrowed_view(views[0], dim, begin, end - begin)


def _every(views: Sequence[View], sizes: Sequence[int]) -> View:
    dim, first, step = _dim(views[0], sizes[0], "every"), sizes[1], sizes[2]
    if not step or first >= step:
        raise BadRequest(
            f"every(...) begins at {first} with a step of {step}: the first index must be less "
            "than the step"
        )
    return narrowed_view(views[0], dim, first, -((first - views[0].shape[dim]) // step), step)


def _stack(views: Sequence[View], sizes: Sequence[int]) -> View:
    _check_alike("stack", views, -1)
    return stacked_view(views)


def _item(views: Sequence[View], sizes: Sequence[int]) -> View:
    count = views[0].shape[_dim(views[0], 0, "item")]
    if sizes[0] >= count:
        raise BadRequest(f"item(...) takes index {sizes[0]}, but there are only {count} indices")
    return indexed_view(views[0], sizes[0])


def _transpose(views: Sequence[View], sizes: Sequence[int]) -> View:
    first, second = (_dim(views[0], size, "transpose") for size in sizes)
    return transposed_view(views[0], first, second)


def _split(views: Sequence[View], sizes: Sequence[int]) -> View:
    view, dim, count = views[0], _dim(views[0], sizes[0], "split"), sizes[1]
    whole = view.shape[dim]
    if not 0 < count <= _MOST_BLOCKS or whole % count:
        raise BadRequest(
            f"split(...) cannot cut dimension {dim} of length {whole} into {count} equal parts"
        )
    part = whole // count
    parts = [narrowed_view(view, dim, number * part, part) for number in range(count)]
    return stacked_view(parts, dim)


def _blocks(view: View, word: str, count: int, multiple: int) -> int:
    rows = view.shape[_dim(view, 0, word)]
    if count > _MOST_BLOCKS or rows > _MOST_ROWS:
        raise BadRequest(
            f"{word}(...) cuts {rows} rows into {count} blocks, more than any real model has"
        )
    if not count or rows % (count * multiple):
        raise BadRequest(
            f"{word}(...) cannot cut {rows} rows into {count} equal blocks"
            + (f" of an even number of rows: {rows} is not a multiple of {2 * count}"
               if multiple == 2 else f": {rows} is not a multiple of {count}")
        )  # fmt: skip
    return rows // count


def _pairs(views: Sequence[View], sizes: Sequence[int]) -> View:
    view, heads = views[0], sizes[0]
    rows = _blocks(view, "pairs", heads, 2)
    both = [
        narrowed_view(view, 0, head * rows + number, 2, rows // 2)
        for head in range(heads)
        for number in range(rows // 2)
    ]
    return concatenated(both, 0)


def _halves(views: Sequence[View], sizes: Sequence[int]) -> View:
    view, heads = views[0], sizes[0]
    rows = _blocks(view, "halves", heads, 2)
    both = [
        narrowed_view(view, 0, head * rows + half, rows // 2, 2)
        for head in range(heads)
        for half in range(2)
    ]
    return concatenated(both, 0)


def _interleave(views: Sequence[View], sizes: Sequence[int]) -> View:
    _check_alike("interleave", views, 0)
    each = [_blocks(view, "interleave", sizes[0], 1) for view in views]
    blocks = [
        narrowed_view(view, 0, group * rows, rows)
        for group in range(sizes[0])
        for view, rows in zip(views, each, strict=True)
    ]
    return concatenated(blocks, 0)


def padded_rows(rows: int, multiple: int) -> int:
    """Return `rows`, rounded up to a multiple of `multiple`."""
    return -(-rows // multiple) * multiple


def _pad(views: Sequence[View], sizes: Sequence[int]) -> View:
    return padded_view(views[0], sizes[0])


_MADE: Mapping[str, Callable[[Sequence[View], Sequence[int]], View]] = {
    "concat": _concat,
    "part": _part,
    "every": _every,
    "stack": _stack,
    "item": _item,
    "transpose": _transpose,
    "pairs": _pairs,
    "halves": _halves,
    "interleave": _interleave,
    "pad": _pad,
    "split": _split,
}
