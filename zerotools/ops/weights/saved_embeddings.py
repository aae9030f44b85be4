"""The embeddings that PEFT saves with an adapter although they were not trained: embeddings with an
adapter themselves, and those of a grown vocabulary with rows that no base model has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.adapter_names import (
    PREFIX,
    SAVED_EMBEDDINGS,
    TOKENS,
    AdapterTensor,
    adapter_of,
    full_name,
    plain_name,
)
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.huggingface.hub_cache import config_of_model
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.weights.adapter_config import BASE_NAME
from zerotools.ops.weights.embeddings import HEADS, is_embedding, model_config


def saved_embeddings(
    held: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    name: str,
    base: Path | None,
) -> tuple[list[AdapterTensor], list[str]]:
    """Return the tensors that PEFT's `save_embedding_layers = "auto"` adds to the adapter `name`,
    and a note if that is unknown. `base` is the base model, None: the one in the config."""
    adapted = {each.module for each in tensors}
    layers = _layers(held)
    is_targeted = _is_targeted(config.get("target_modules"), adapted)
    if is_targeted and config.get("trainable_token_indices") is None:
        wrapped = [f"{layer}.base_layer" for layer in layers if plain_name(layer) in adapted]
        return list(_below(held, wrapped, name, tensors)), []
    rows = next((tensor.shape[0] for key, tensor in held.tensors.items()
                 if is_embedding(plain_name(key.name)) and len(tensor.shape) == 2
                 and adapter_of(key) is None), None)  # fmt: skip
    if rows is None:
        return [], []
    known = _vocabulary(config, base)
    if known is None:
        where = config.get(BASE_NAME) or "the base model"
        return [], [
            f"{where} is not on this machine, so it is not known whether the vocabulary of "
            f"{rows} rows has grown and must be saved with the adapter; pass --base DIR"
        ]
    if known == rows:
        return [], []
    found = list(_below(held, layers, name, tensors))
    return found, [f"the vocabulary has {rows} rows, and that of the base model {known}: "
                   f"{' and '.join(plain_name(each) for each in layers)} are saved with the "
                   "adapter"]  # fmt: skip


def _layers(held: Checkpoint) -> list[str]:
    """Return the first and the last layer, as PEFT's model calls them."""
    found: dict[str, None] = {}
    for key in held.tensors:
        plain = plain_name(key.name)
        if is_embedding(plain) or plain in HEADS:
            found[PREFIX + plain.removesuffix(".weight")] = None
    for alias in held.aliases:
        if plain_name(alias) in HEADS:
            found[PREFIX + plain_name(alias).removesuffix(".weight")] = None
    return list(found)


def _is_targeted(modules: object, adapted: set[str]) -> bool:
    if isinstance(modules, str):
        leaves = {module.rpartition(".")[2] for module in adapted}
        return not leaves.isdisjoint(SAVED_EMBEDDINGS)
    return isinstance(modules, list) and any(each in modules for each in SAVED_EMBEDDINGS)


def _vocabulary(config: Mapping[str, Any], base: Path | None) -> int | None:
    """Return the rows of the base model's vocabulary."""
    named = config.get(BASE_NAME)
    path = None
    if base is not None:
        path = base / CONFIG
    elif isinstance(named, str) and named:
        path = config_of_model(named)
    tree = model_config(path)
    for inner in (tree, tree.get("text_config")):
        size = inner.get("vocab_size") if isinstance(inner, dict) else None
        if type(size) is int:
            return size
    return None


def _below(
    held: Checkpoint, modules: Sequence[str], name: str, tensors: Sequence[AdapterTensor]
) -> Iterator[AdapterTensor]:
    """Yield every tensor of the modules, under the name that PEFT saves it by."""
    known = {each.saved for each in tensors}
    keys = {full_name(key.name): key for key in held.tensors}
    for alias, holder in held.aliases.items():
        if Key(holder, "param") in held.tensors:
            keys.setdefault(full_name(alias), Key(holder, "param"))
    for full, key in keys.items():
        inside = any(full.startswith(f"{module}.") for module in modules)
        saved = re.sub(rf"\.{re.escape(name)}(?=\.|$)", "", full)
        if inside and saved not in known and adapter_of(key) in (None, name):
            yield AdapterTensor(key, plain_name(full).rpartition(".")[0], "embedding", saved, full)


def own_tokens(tensors: Sequence[AdapterTensor], config: Mapping[str, Any]) -> list[AdapterTensor]:
    """Return the tensors without the rows that an output layer only shares with the embedding: PEFT
    saves these once."""
    tokens = {each.module for each in tensors if each.part == TOKENS}
    named = config.get("trainable_token_indices")
    named = tuple(named) if isinstance(named, dict) else ()
    shared = {
        module
        for module in tokens
        if len(tokens) > 1
        and f"{module}.weight" in HEADS
        and not any(f".{module}".endswith(f".{each}") for each in named)
    }
    return [each for each in tensors if each.part != TOKENS or each.module not in shared]
