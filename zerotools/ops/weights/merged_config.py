"""Make the config.json of a model with a merged adapter: the base model's config with the changes
that the merged weights need. Tie the output layer to the embedding if the config does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.core.target import Target
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import (
    LARGEST_CONFIG,
    SCALED_BY_TIE,
    config_of_model,
    ties_embeddings,
)
from zerotools.io.huggingface.model_sidecars import CONFIG, model_sidecars, of_other_kinds
from zerotools.io.output.files_without_tensors import file_of_bytes

TIES = "tie_word_embeddings"
_VOCABULARY, _INNER = "vocab_size", "text_config"


def with_base_config(checkpoint: Checkpoint, base: str | None) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint and notes. A checkpoint without a config gets the config and tokenizer
    of its base model, if this machine has that model."""
    if CONFIG in checkpoint.model_sidecars or base is None:
        return checkpoint, []
    path = config_of_model(base)
    if path is None:
        return checkpoint, []
    more = of_other_kinds(model_sidecars(path.parent), checkpoint.model_sidecars)
    sidecars = {**checkpoint.model_sidecars, **more}
    note = f"took {', '.join(more)} from {path.parent}, the base model of the adapter"
    return replace(checkpoint, model_sidecars=sidecars), [note]


def with_merged_config(target: Target, weights: Checkpoint) -> Target:
    """Return the target with a config.json that fits its weights: the size of the vocabulary, and
    no tie of the embedding to an output layer that was trained separately."""
    return with_changed_config(target, weights, lambda tree: _changes(tree, weights))


def with_changed_config(
    target: Target, weights: Checkpoint, changes: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> Target:
    """Return the target with a changed config.json, and with a note on the changes. `changes`
    returns the new keys and values for the present config."""
    path = weights.model_sidecars.get(CONFIG)
    if path is None or CONFIG not in target.files:
        return target
    written = target.files[CONFIG].literals
    tree: dict[str, Any] = json.loads(written[0].data) if written else model_config(path)
    changed = changes(tree)
    if TIES in changed and tree.get("model_type") in SCALED_BY_TIE:
        del changed[TIES]
        note = (
            f"{CONFIG} keeps {TIES}, which also scales the outputs of {tree['model_type']} models; "
            "transformers before 5 ignores the output layer, which differs from the embedding"
        )
        target = replace(target, notes=(*target.notes, note))
    if not changed:
        return target
    tree = _with_changes(tree, changed)
    text = (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()
    files = {**target.files, CONFIG: file_of_bytes(text)}
    sizes = {name: plan.size for name, plan in files.items()}
    said = " and ".join(f"{key} = {json.dumps(value)}" for key, value in changed.items())
    return replace(
        target,
        files=files,
        checkpoint=replace(target.checkpoint, files=sizes),
        notes=(*target.notes, f"{CONFIG} is written with {said}, like the weights"),
    )


def merged_tree(
    tree: Mapping[str, Any], weights: Checkpoint
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the base model's config.json `tree` with the changes that merged weights need, and
    these changes."""
    changed = _changes(tree, weights)
    return _with_changes(tree, changed), changed


def _with_changes(tree: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    inner = tree.get(_INNER)
    is_inner = isinstance(inner, dict) and _VOCABULARY in inner and _VOCABULARY not in tree
    merged = {**tree, **{k: v for k, v in changed.items() if not (is_inner and k == _VOCABULARY)}}
    if isinstance(inner, dict):
        is_tied = ties_embeddings(inner)  # also by the default of its class
        of_inner = {k: v for k, v in changed.items() if k in inner or (k == TIES and is_tied)}
        merged[_INNER] = {**inner, **of_inner}
    return merged


def _changes(tree: Mapping[str, Any], weights: Checkpoint) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    rows = {
        tensor.shape[0]
        for key, tensor in weights.tensors.items()
        if is_token_embedding(key.name) or key.name in HEADS
    }
    inner = tree.get(_INNER)
    tables = [tree, inner] if isinstance(inner, dict) else [tree]
    known = next((each[_VOCABULARY] for each in tables if _VOCABULARY in each), None)
    if len(rows) == 1 and type(known) is int and rows != {known}:
        changed[_VOCABULARY] = rows.pop()
    if ties_embeddings(tree) and any(key.name in HEADS for key in weights.tensors):
        changed[TIES] = False
    return changed


HEADS = ("lm_head.weight", "embed_out.weight")
"""The names that models use for the weight of their output layer."""
_SHARED = ("model.shared.weight", "shared.weight")
"""The embedding of a model with encoder and decoder, if its file has it once for both."""
_EMBEDDING = re.compile(
    r"(.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.weight"
)


def is_token_embedding(name: str) -> bool:
    """Return whether a name is that of a token embedding."""
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
    """Return the weights with the output layer as an alias of the embedding, if config.json ties
    the two. A separate output layer stays, unless it is in `copies`, the weights that were not
    trained.

    An output layer is recognised by its name, which must be a name of the weights or in `named`.
    """
    names = {key.name for key in weights.tensors}
    embeddings = [key for key in weights.tensors if is_token_embedding(key.name)]
    embeddings = embeddings or [key for key in weights.tensors if key.name in _SHARED]
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
