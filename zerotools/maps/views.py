"""Views: tensors made from strided parts of other tensors. Elements are moved, but no value is
computed.

Renaming, joining, cutting, stacking, transposing, permuting rows and padding with copies of a row
all make such views, and so do combinations of them. A view consists of pieces (`ViewPiece`). A
piece is a box of the view, and the strided part of one source tensor that fills the box. This part
starts at an index of the source. For each dimension of the box, the piece has the corresponding
dimension of the source, and the step along it.

Example: the halves of two heads of four rows become pairs. Row 4h + 2i + j of the view is row 4h +
2j + i of the source, so the view has four pieces of two rows, with a step of 2 in the source:

    rows of the view       0 1 | 2 3 | 4 5 | 6 7
    rows of the source     0 2 | 1 3 | 4 6 | 5 7

The inverse is made from the same pieces, with source and view exchanged. In the inverse too, rows
at equal distances are joined into one piece. A source is used exactly once if the boxes of its
inverse cover it exactly (`boxes.prove_cover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from zerotools.core.boxes import Box
from zerotools.core.errors import Unsupported


@dataclass(frozen=True, slots=True)
class ViewPiece:
    """A part of a view: block `box` of the view is filled from source number `source`, from index
    `start` on.

    Attributes:
        dims, steps: one index along dimension d of the box is `steps[d]` (at least 1) indices along
            dimension `dims[d]` of the source. If `dims[d]` is -1, the position in the source stays
            the same, so elements are repeated.
        is_padding: True if the piece repeats elements that another piece has.
    """

    box: Box
    source: int
    start: tuple[int, ...]
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    is_padding: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A tensor of `shape`, made of pieces that cover the tensor and do not overlap."""

    shape: tuple[int, ...]
    pieces: tuple[ViewPiece, ...]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A view of named tensors: `names[n]` is the name of source number n."""

    view: View
    names: tuple[str, ...]


def whole_view(source: int, shape: tuple[int, ...]) -> View:
    """Return the view that is the whole of source number `source`."""
    dims = tuple(range(len(shape)))
    start, steps = (0,) * len(shape), (1,) * len(shape)
    return View(shape, (ViewPiece(Box.whole(shape), source, start, dims, steps),))


def narrowed_view(view: View, dim: int, first: int, count: int, step: int = 1) -> View:
    """Return a view of `count` indices along `dim`. The first index is `first`, and neighbours are
    `step` apart.
    """
    shape = (*view.shape[:dim], count, *view.shape[dim + 1 :])
    pieces = tuple(_narrowed_pieces(view.pieces, dim, first, count, step))
    return View(shape, pieces)


def _narrowed_pieces(
    pieces: Iterable[ViewPiece], dim: int, first: int, count: int, step: int
) -> Iterator[ViewPiece]:
    for piece in pieces:
        begin, size = piece.box.start[dim], piece.box.shape[dim]
        low = max(0, -((first - begin) // step))  # the first index that is not before the piece
        high = min(count, -((first - begin - size) // step))
        if low < high:
            inside = first + low * step - begin
            yield _cut(piece, dim, inside, high - low, step, low)


def _cut(piece: ViewPiece, dim: int, inside: int, count: int, step: int, place: int) -> ViewPiece:
    """Return the part of a piece that has `count` indices along `dim`, beginning at index `inside`
    of the piece. The part begins at index `place` of the view.
    """
    start, along = list(piece.start), piece.dims[dim]
    if along >= 0:
        start[along] += inside * piece.steps[dim]
    box = Box(_with(piece.box.start, dim, place), _with(piece.box.shape, dim, count))
    steps = _with(piece.steps, dim, piece.steps[dim] * step)
    return replace(piece, box=box, start=tuple(start), steps=steps)


def _with(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])


def concatenated(views: Sequence[View], dim: int) -> View:
    """Return the views concatenated along `dim`."""
    pieces, at = [], 0
    for view in views:
        for piece in view.pieces:
            start = _with(piece.box.start, dim, piece.box.start[dim] + at)
            pieces.append(replace(piece, box=Box(start, piece.box.shape)))
        at += view.shape[dim]
    return View(_with(views[0].shape, dim, at), tuple(pieces))


def stacked_view(views: Sequence[View], dim: int = 0) -> View:
    """Return the views stacked along a new dimension, which becomes dimension `dim`."""
    pieces = [
        replace(
            piece,
            box=Box(_inserted(piece.box.start, dim, number), _inserted(piece.box.shape, dim, 1)),
            dims=_inserted(piece.dims, dim, -1),
            steps=_inserted(piece.steps, dim, 1),
        )
        for number, view in enumerate(views)
        for piece in view.pieces
    ]
    return View(_inserted(views[0].shape, dim, len(views)), tuple(pieces))


def _inserted(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim:])


def indexed_view(view: View, index: int, dim: int = 0) -> View:
    """Return the part of the view with one `index` of dimension `dim`, without this dimension."""

    def without(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values[:dim], *values[dim + 1 :])

    pieces = [
        replace(
            piece,
            box=Box(without(piece.box.start), without(piece.box.shape)),
            dims=without(piece.dims),
            steps=without(piece.steps),
        )
        for piece in narrowed_view(view, dim, index, 1).pieces
    ]
    return View(without(view.shape), tuple(pieces))


def transposed_view(view: View, first: int, second: int) -> View:
    """Return the view with two dimensions exchanged."""
    order = list(range(len(view.shape)))
    order[first], order[second] = second, first

    def moved(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[dim] for dim in order)

    pieces = [
        replace(
            piece,
            box=Box(moved(piece.box.start), moved(piece.box.shape)),
            dims=moved(piece.dims),
            steps=moved(piece.steps),
        )
        for piece in view.pieces
    ]
    return View(moved(view.shape), tuple(pieces))


def padded_view(view: View, rows: int) -> View:
    """Return the view padded to `rows` in its first dimension, by repeating its last row."""
    more = rows - view.shape[0]
    if more <= 0:
        return view
    last = narrowed_view(view, 0, view.shape[0] - 1, 1)
    pieces = [
        replace(
            piece,
            box=Box((view.shape[0], *piece.box.start[1:]), (more, *piece.box.shape[1:])),
            dims=(-1, *piece.dims[1:]),
            is_padding=True,
        )
        for piece in last.pieces
    ]
    return View((rows, *view.shape[1:]), (*view.pieces, *pieces))


def inverse_pieces(view: View, ranks: Sequence[int]) -> list[tuple[ViewPiece, ...]]:
    """Return, for each source, the pieces that fill this source from `view`.

    `ranks` are the numbers of dimensions of the sources. The `box` of each piece is in the source,
    and its `source` is 0, which stands for the view. Padding, which repeats elements, is left out.
    """
    found: list[list[ViewPiece]] = [[] for _ in ranks]
    uneven: list[set[int]] = [set() for _ in ranks]
    for piece in view.pieces:
        if not piece.is_padding:
            found[piece.source] += _pieces_of_source(piece, ranks[piece.source])
            uneven[piece.source] |= {
                along
                for along, step, count in zip(piece.dims, piece.steps, piece.box.shape, strict=True)
                if step > 1 and count > 1
            }
    for number, dims in enumerate(uneven):
        for dim in sorted(dims):
            found[number] = _merged(found[number], dim)
    return [tuple(pieces) for pieces in found]


def _pieces_of_source(piece: ViewPiece, rank: int) -> Iterator[ViewPiece]:
    """Yield the pieces that fill the source of `piece` from the view: one if all steps are 1, else
    one for each index along a dimension with a larger step.
    """
    dims, shape = [-1] * rank, [1] * rank
    apart: list[int] = []
    for dim, (along, count) in enumerate(zip(piece.dims, piece.box.shape, strict=True)):
        if along < 0:
            continue
        dims[along] = dim
        if piece.steps[dim] == 1 or count == 1:
            shape[along] = count
        else:
            apart.append(dim)
    for indices in product(*(range(piece.box.shape[dim]) for dim in apart)):
        start, there = list(piece.start), list(piece.box.start)
        for dim, index in zip(apart, indices, strict=True):
            start[piece.dims[dim]] += index * piece.steps[dim]
            there[dim] += index
        box = Box(tuple(start), tuple(shape))
        yield ViewPiece(box, 0, tuple(there), tuple(dims), (1,) * rank)


def _merged(pieces: Sequence[ViewPiece], dim: int) -> list[ViewPiece]:
    """Join pieces that have one index along `dim`, if they are at equal distances in the source."""
    rows: dict[object, list[ViewPiece]] = {}
    done: list[ViewPiece] = []
    for piece in pieces:
        along = piece.dims[dim]
        if piece.box.shape[dim] != 1 or along < 0:
            done.append(piece)
            continue
        there = _with(piece.start, along, 0)
        rest = (_with(piece.box.start, dim, 0), piece.box.shape, there, piece.dims, piece.steps)
        rows.setdefault(rest, []).append(piece)
    for alike in rows.values():
        done += _runs(sorted(alike, key=lambda each: each.box.start[dim]), dim)
    return done


def _runs(rows: list[ViewPiece], dim: int) -> Iterator[ViewPiece]:
    """Join rows into as few pieces as possible, in order. Adjacent rows of the view become one
    piece if their distances in the source are equal.
    """
    along = rows[0].dims[dim]
    at = 0
    while at < len(rows):
        first, end, step = rows[at], at + 1, 0
        while end < len(rows):
            before, after = rows[end - 1], rows[end]
            went = after.start[along] - before.start[along]
            if after.box.start[dim] != before.box.start[dim] + 1 or went < 1:
                break
            if step and went != step:
                break
            step, end = went, end + 1
        box = Box(first.box.start, _with(first.box.shape, dim, end - at))
        yield replace(first, box=box, steps=_with(first.steps, dim, step or 1))
        at = end


def view_of_rows(name: str, weight: TensorView, rank: int) -> View:
    """Return the view that makes the lora_B of the weight `name` from the lora_B of each weight
    that `name` is made of. Each lora_B has `rank` columns.

    A layer computes with W + scale * B·A: B has the rows of W, and A its columns. So if a layout
    moves whole rows of W, the rows of B move in the same way. A does not change, so all parts of a
    weight have the same A. In Megatron's layout, in which each query group has its rows of q, k and
    v together:

        linear_qkv   B [q0 k0 v0 q1 k1 v1]   A
        q_proj       B [q0 q1]               A
        k_proj       B [k0 k1]               A
        v_proj       B [v0 v1]               A

    In the other direction, linear_qkv gets a single A from q_proj, k_proj and v_proj, so their
    matrices A must be equal.

    Raises:
        Unsupported: the layout does not move the weights in whole rows.
    """
    view = weight.view
    if len(view.shape) != 2 or not all(_has_whole_rows(piece, view) for piece in view.pieces):
        raise Unsupported(
            f"{name} does not consist of whole rows of {weight.names[0]}, so the adapter of one "
            "does not fit the other: merge the adapter into its base model, and map the result"
        )
    pieces = tuple(
        replace(
            piece,
            box=Box(piece.box.start, (piece.box.shape[0], rank)),
        )
        for piece in view.pieces
    )
    return View((view.shape[0], rank), pieces)


def _has_whole_rows(piece: ViewPiece, view: View) -> bool:
    rows, columns = piece.dims
    return (
        rows in (-1, 0)
        and columns == 1
        and len(piece.start) == 2
        and piece.start[1] == piece.box.start[1] == 0
        and piece.steps[1] == 1
        and piece.box.shape[1] == view.shape[1]
    )
