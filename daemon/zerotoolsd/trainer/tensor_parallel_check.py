"""The check that tensor ranks compute the same as one rank, on a small model of the same layers."""

from __future__ import annotations

from typing import Any

import torch

from zerotools.core.errors import Unsupported, ZerotoolsError
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.sharding import check_cuts
from zerotoolsd.trainer.model.tiny_model import small_model
from zerotoolsd.trainer.tensor_parallel.folded import fold_ranks
from zerotoolsd.trainer.tensor_parallel.layer_cuts import layer_cuts

TRIED_RANKS = 2
"""The small model has few heads; code that works with half of them works with other parts."""
TRIED = 12
"""Tokens of the sequence."""
TOLERANCE = 1e-4
"""Largest difference of logits in fp32, relative to the largest logit."""


def check_tensor_ranks(meta_model: MetaModel, tensor_ranks: int) -> list[str]:
    """Return notes on how tensor ranks share the layers of a model.

    Raises:
        Unsupported: they cannot, or the model computes something else from cut values.
        BadRequest: they do not divide its heads, or a layer.
    """
    cuts = check_cuts(meta_model.model, tensor_ranks)
    if tensor_ranks == 1:
        return []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(meta_model.config)
        why = None if model is None else difference(model.eval())
    if why is not None:
        raise Unsupported(
            f"zero.tensor_ranks = {tensor_ranks}: {type(meta_model.model).__name__} computes "
            f"something else with a part of its heads and columns ({why}); leave it out"
        )
    return list(cuts.notes)


def difference(model: Any) -> str | None:
    """Return the error when two tensor ranks compute `model`, which is changed for this.

    Returns None without an error, or if they cannot share such a small model.
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
        return "its logits have another shape"
    off = float((found - wanted).abs().max() / wanted.abs().max())
    return None if off <= TOLERANCE else f"logits differ by {off:.2g} of the largest"
