"""config.json of a model with a merged adapter: that of its base model, with the adapter's
changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import Target
from zerotools.io.huggingface.hub_cache import config_of_model
from zerotools.io.huggingface.model_sidecars import CONFIG, model_sidecars, of_other_kinds
from zerotools.io.huggingface.tied_by_default import ties_embeddings
from zerotools.io.output.plain_files import literal
from zerotools.ops.weights.embeddings import HEADS, is_embedding, model_config

_VOCABULARY, _TIES, _INNER = "vocab_size", "tie_word_embeddings", "text_config"


def with_base_config(checkpoint: Checkpoint, base: str | None) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint with the config and tokenizer of its base model, if it has no config
    and the base is on this machine; and a note on that."""
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
    """Return the target with the weights' vocabulary in config.json, and without a tie to an output
    layer that was trained separately from the embedding."""
    path = weights.model_sidecars.get(CONFIG)
    if path is None or CONFIG not in target.files:
        return target
    written = target.files[CONFIG].literals
    tree: dict[str, Any] = json.loads(written[0].data) if written else model_config(path)
    tree, changed = merged_tree(tree, weights)
    if not changed:
        return target
    text = (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()
    files = {**target.files, CONFIG: literal(text)}
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
    """Return the tree of a base model's config.json as it is written with merged weights, and the
    keys that change."""
    changed, inner = _changes(tree, weights), tree.get(_INNER)
    is_inner = isinstance(inner, dict) and _VOCABULARY in inner and _VOCABULARY not in tree
    merged = {**tree, **{k: v for k, v in changed.items() if not (is_inner and k == _VOCABULARY)}}
    if isinstance(inner, dict):
        merged[_INNER] = {**inner, **{k: v for k, v in changed.items() if k in inner}}
    return merged, changed


def _changes(tree: Mapping[str, Any], weights: Checkpoint) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    rows = {
        tensor.shape[0]
        for key, tensor in weights.tensors.items()
        if is_embedding(key.name) or key.name in HEADS
    }
    inner = tree.get(_INNER)
    tables = [tree, inner] if isinstance(inner, dict) else [tree]
    known = next((each[_VOCABULARY] for each in tables if _VOCABULARY in each), None)
    if len(rows) == 1 and type(known) is int and rows != {known}:
        changed[_VOCABULARY] = rows.pop()
    if ties_embeddings(tree) and any(key.name in HEADS for key in weights.tensors):
        changed[_TIES] = False
    return changed
