"""The first and the last layer of a language model, which may be one weight."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.io.files.json_file import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG
from zerotools.io.huggingface.tied_by_default import ties_embeddings

HEADS = ("lm_head.weight", "embed_out.weight")
"""The names that models use for the weight of their output layer."""
_EMBEDDING = re.compile(
    r"(.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.weight"
)


def is_embedding(name: str) -> bool:
    """Return whether a weight is the token embedding."""
    return _EMBEDDING.fullmatch(name) is not None


def model_config(path: Path | None) -> dict[str, Any]:
    """Return the config.json at `path`; empty if it does not exist or cannot be read."""
    try:
        config: Any = None if path is None else read_json(path, LARGEST_CONFIG)
    except (OSError, BadFile, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def with_tied_head(
    weights: Checkpoint,
    config: Path | None,
    copies: Collection[str],
    named: Collection[str] = (),
) -> Checkpoint:
    """Return the weights with the output layer as an alias of the embedding if config.json ties
    them. A separate head stays, unless it is one of `copies`, which were not trained.

    A model has an output layer of a usual name only if its weights have that name, or a run and its
    adapter with the names `named`.
    """
    embeddings = [key for key in weights.tensors if is_embedding(key.name)]
    names = {key.name for key in weights.tensors}
    head = next((each for each in HEADS if each in names or each in named), None)
    if (
        head is None
        or len(embeddings) != 1
        or head in weights.aliases
        or (head in names and head not in copies)
        or not ties_embeddings(model_config(config))
    ):
        return weights
    tensors = {key: tensor for key, tensor in weights.tensors.items() if key.name != head}
    shapes = {key.name: tensor.shape for key, tensor in weights.tensors.items()}
    if head in names and shapes[head] != shapes[embeddings[0].name]:
        return weights
    aliases = {**weights.aliases, head: embeddings[0].name}
    return replace(weights, tensors=tensors, aliases=aliases)
