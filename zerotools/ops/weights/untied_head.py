"""Untie config.json if the weights have an output layer that differs from the embedding.

transformers before 5, vLLM and others load only the embedding if config.json ties the two. So an
output layer that was trained separately would be ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import Target
from zerotools.io.huggingface.config_json import ties_embeddings
from zerotools.ops.weights.adapter_arithmetic import block_reader
from zerotools.ops.weights.merged_config import (
    HEADS,
    TIES,
    is_token_embedding,
    with_changed_config,
)

_ROWS = 64


def with_untied_config(target: Target, weights: Checkpoint) -> Target:
    """Return the target with a config.json that does not tie the output layer to the embedding, if
    the two differ (`head_differs`)."""

    def changes(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {TIES: False} if ties_embeddings(tree) and head_differs(weights) else {}

    return with_changed_config(target, weights, changes)


def head_differs(weights: Checkpoint) -> bool:
    """Return whether the weights have one embedding and one output layer, and these differ.

    The first, middle and last rows are compared. Rows that cannot be read count as equal, because
    the export itself reports them.
    """
    embeddings = [key for key in weights.tensors if is_token_embedding(key.name)]
    heads = [key for key in weights.tensors if key.name in HEADS]
    if len(embeddings) != 1 or len(heads) != 1:
        return False
    keys: tuple[Key, Key] = (embeddings[0], heads[0])
    one, other = (weights.tensors[key] for key in keys)
    is_plain = all(type(each) is Tensor and each.dtype.is_float for each in (one, other))
    if one is other or not is_plain or len(one.shape) != 2 or one.shape != other.shape:
        return False
    read_one, read_other = (block_reader(weights, key) for key in keys)
    try:
        return any(
            not np.array_equal(read_one(box), read_other(box), equal_nan=True)
            for box in _samples(*one.shape)
        )
    except (BadFile, BadRequest):
        return False


def _samples(rows: int, columns: int) -> Iterator[Box]:
    height = min(rows, _ROWS)
    for first in dict.fromkeys((0, (rows - height) // 2, rows - height)):
        yield Box((first, 0), (height, columns))
