"""Tensor ranks in one process: their values are behind one another in the batch.

A model that is called with each sequence as often as there are ranks computes the values of each: a
layer applies the n-th part of its weights to the n-th part of the batch. So a single process can
test whether the code between cut layers (heads, rotations, norms) is right with fewer columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from zerotoolsd.trainer.tensor_parallel.layer_cuts import (
    COLUMNS,
    GATHERED_COLUMNS,
    ROWS,
    SPLIT_ROWS,
    LayerCuts,
)


def fold_ranks(model: Any, cuts: LayerCuts) -> None:
    """Let the layers of `model` compute like those of all ranks."""
    for name, cut in cuts.layers.items():
        if cut in _FORWARDS:
            layer = model.get_submodule(name)
            layer.forward = partial(_FORWARDS[cut], layer, cuts.ranks)


def _columns(layer: Any, ranks: int, wholes: torch.Tensor) -> torch.Tensor:
    return torch.cat(_parts(layer, ranks, wholes))


def _gathered_columns(layer: Any, ranks: int, wholes: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.cat(_parts(layer, ranks, wholes), -1)] * ranks)


def _parts(layer: Any, ranks: int, wholes: torch.Tensor) -> list[torch.Tensor]:
    biases = [None] * ranks if layer.bias is None else layer.bias.chunk(ranks)
    each = zip(wholes.chunk(ranks), layer.weight.chunk(ranks), biases, strict=True)
    return [functional.linear(whole, weight, bias) for whole, weight, bias in each]


def _rows(layer: Any, ranks: int, parts: torch.Tensor) -> torch.Tensor:
    each = zip(parts.chunk(ranks), layer.weight.chunk(ranks, 1), strict=True)
    found = torch.stack([functional.linear(part, weight) for part, weight in each]).sum(0)
    return torch.cat([found if layer.bias is None else found + layer.bias] * ranks)


def _split_rows(layer: Any, ranks: int, wholes: torch.Tensor) -> torch.Tensor:
    own = [whole.chunk(ranks, -1)[rank] for rank, whole in enumerate(wholes.chunk(ranks))]
    return _rows(layer, ranks, torch.cat(own))


_FORWARDS: Mapping[str, Callable[..., torch.Tensor]] = {
    COLUMNS: _columns,
    GATHERED_COLUMNS: _gathered_columns,
    ROWS: _rows,
    SPLIT_ROWS: _split_rows,
}
