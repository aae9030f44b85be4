"""The two matrices of a LoRA adapter in another layout of the model.

A layer computes with W + scale * B·A: B has the rows of W, and A its columns. So a layout moves the
rows of B like whole rows of weights, and each part of a weight has the same A. In Megatron's
layout, with the rows of q, k and v by query group:

    linear_qkv   B [q0 k0 v0 q1 k1 v1]   A
    q_proj       B [q0 q1]               A
    k_proj       B [k0 k1]               A
    v_proj       B [v0 v1]               A

The inverse has one A for q, k and v: so theirs must be equal.
"""

from __future__ import annotations

from dataclasses import replace

from zerotools.core.boxes import Box
from zerotools.core.errors import Unsupported
from zerotools.maps.views import TensorView, View, ViewPiece


def view_of_rows(name: str, weight: TensorView, rank: int) -> View:
    """Return the view that makes B of the weight `name`, with `rank` columns, of those of the
    weights that it is made of.

    Raises:
        Unsupported: the layout moves more than whole rows of them.
    """
    view = weight.view
    if len(view.shape) != 2 or not all(_has_whole_rows(piece, view) for piece in view.pieces):
        raise Unsupported(
            f"{name} does not consist of whole rows of {weight.names[0]}, so the adapter of one "
            "does not fit the other: merge it into its base model, and map that"
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
