"""Checks on a small model with the same layers that tensor ranks compute the same values as one
rank.

One process computes the parts of all ranks, one after the other (`fold_ranks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from zerotools.core.errors import Unsupported, ZerotoolsError
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.sharding import check_cuts
from zerotoolsd.trainer.model.tiny_model import small_model
from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import (
    COLUMNS,
    GATHERED_COLUMNS,
    ROWS,
    SPLIT_ROWS,
    LayerCuts,
    layer_cuts,
)

TRIED_RANKS = 2
"""Number of ranks in the test.

Two ranks are enough, because the small model has few heads, and a model that works with half of its
heads also works with other parts.
"""
TRIED = 12
"""Number of tokens in the test sequence."""
TOLERANCE = 1e-4
"""Largest accepted difference of fp32 logits, relative to the largest logit."""


def check_tensor_ranks(meta_model: MetaModel, tensor_ranks: int) -> list[str]:
    """Check that `tensor_ranks` ranks can share the layers of a model.

    Returns notes about layers that are not split.

    Raises:
        Unsupported: the layers cannot be shared, or the model computes wrong values if its layers
            are split.
        BadRequest: the number of ranks does not divide the number of heads, or the size of a layer.
    """
    cuts = check_cuts(meta_model.model, tensor_ranks)
    if tensor_ranks == 1:
        return []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(meta_model.config)
        why = None if model is None else rank_difference(model.eval())
    if why is not None:
        raise Unsupported(
            f"zero.tensor_ranks = {tensor_ranks}: {type(meta_model.model).__name__} computes wrong "
            f"values if its heads and columns are split among ranks ({why}); remove "
            "zero.tensor_ranks"
        )
    return list(cuts.notes)


def rank_difference(model: Any) -> str | None:
    """Compare the results of two tensor ranks with the results of one rank.

    Returns a text about the difference; None if the results are equal, or if two ranks cannot share
    a model as small as this one. `model` is a small model, which is changed.
    """
    try:
        cuts = layer_cuts(model, TRIED_RANKS)
    except ZerotoolsError:
        return None
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (1, TRIED))
    wanted = model(input_ids=ids, use_cache=False).logits
    fold_ranks(model, cuts)
    try:
        found = model(input_ids=ids.repeat(TRIED_RANKS, 1), use_cache=False).logits
    except Exception as error:  # whatever a model of any kind raises over fewer columns
        return " ".join(str(error).split())[:200] or type(error).__name__
    if found.shape != (TRIED_RANKS, *wanted.shape[1:]):
        return "its logits have a different shape"
    off = float((found - wanted).abs().max() / wanted.abs().max())
    return None if off <= TOLERANCE else f"logits differ by {off:.2g} of the largest logit"


def fold_ranks(model: Any, cuts: LayerCuts) -> None:
    """Make the layers of `model` compute the parts of all ranks in this process.

    The batch must contain each sequence once for each rank: first all sequences of the first rank,
    then all sequences of the second rank, and so on. A split layer applies the n-th part of its
    weights to the n-th part of the batch. So one process can test the code between the split layers
    (heads, rotary positions, norms), which gets only a part of the columns on each rank.
    """
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
