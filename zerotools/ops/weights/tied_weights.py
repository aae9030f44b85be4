"""Decide how formats that hold only weights store tied weights: once, or under each of
their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import Target
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG, ties_embeddings
from zerotools.ops.weights.adapter_arithmetic import block_reader
from zerotools.ops.weights.merged_config import (
    HEADS,
    TIES,
    is_token_embedding,
    with_changed_config,
)
from zerotools.ops.weights.model_to_match import Reference

_EMBEDDING = re.compile(r"(^|[._])(embed\w*|tok_embeddings|word_embeddings|wte|shared)\.weight$")


def resolve_aliases(
    weights: Checkpoint,
    *,
    keep: bool = False,
    like: Reference | None = None,
    ties: Mapping[str, str] | None = None,
) -> tuple[Checkpoint, list[str]]:
    """Return `weights` with each tied weight once or under each of its names, and notes on them.

    A tied name is left out if the model ties it when it is loaded. `ties` maps these names to the
    names that the model reads; if it is None, config.json decides. With a reference model `like`,
    exactly the names of this model are written. With `keep`, all names are written.
    """
    weights = held_by(weights, _holders(like, ties))
    if like is not None and not keep:
        written = {alias for alias in weights.aliases if alias in like.tensors}
        why = f"as {like.path} does"
    elif ties is not None and not keep:
        written = {alias for alias in weights.aliases if not _is_tied(weights, alias, ties)}
        why = "because no config.json marks them as tied"
    elif keep or not _config_ties(weights):
        written = set(weights.aliases)
        why = "as asked" if keep else "because no config.json marks them as tied"
    else:
        written, why = set(), ""
    why_once = why if like is not None and not keep else "as config.json says"
    tensors = dict(weights.tensors)
    for alias, name in weights.aliases.items():
        if alias in written:
            tensors.setdefault(Key(alias, "param"), tensors[Key(name, "param")])
    notes = [
        f"tied weights are {how}, {reason}: {_listed(weights, chosen)}"
        for how, reason, chosen in (
            ("stored once", why_once, weights.aliases.keys() - written),
            ("written under each name", why, written),
        )
        if chosen
    ]
    dropped = {alias: name for alias, name in weights.aliases.items() if alias not in written}
    return replace(weights, tensors=tensors, aliases=dropped), notes


def held_by(weights: Checkpoint, is_holder: Callable[[str], bool]) -> Checkpoint:
    """Return `weights` with every tied tensor under a name that `is_holder` accepts, and with its
    other names as aliases. A tensor without such a name keeps its name."""
    new_names: dict[str, str] = {}
    for alias, name in weights.aliases.items():
        if not is_holder(name) and is_holder(alias) and name not in new_names:
            new_names[name] = alias
    if not new_names:
        return weights
    tensors = {
        Key(new_names.get(key.name, key.name), key.role): tensor
        for key, tensor in weights.tensors.items()
    }
    aliases = {
        alias: new_names.get(name, name)
        for alias, name in weights.aliases.items()
        if new_names.get(name) != alias
    }
    aliases |= new_names
    return replace(weights, tensors=tensors, aliases=aliases)


def _may_be_embedding(name: str) -> bool:
    """Return whether a name is a usual name of an embedding that an output layer may be tied to.
    More names count than for `is_token_embedding`, such as `shared.weight`."""
    return _EMBEDDING.search(name) is not None


def _holders(like: Reference | None, ties: Mapping[str, str] | None) -> Callable[[str], bool]:
    if like is not None:
        return lambda name: name in like.tensors
    if ties:
        sources = set(ties.values())
        return lambda name: any(name == each or _are_one(name, each) for each in sources)
    return _may_be_embedding


def _group(weights: Checkpoint, alias: str) -> set[str]:
    """Return all names of the tensor with the alias `alias`."""
    name = weights.aliases[alias]
    return {name, *(each for each, held in weights.aliases.items() if held == name)}


def _is_tied(weights: Checkpoint, alias: str, ties: Mapping[str, str]) -> bool:
    """Return whether the model ties `alias` to the tensor, according to `ties`. The names in `ties`
    may have another prefix, because names in memory differ from names in files."""
    if ties.get(alias) in _group(weights, alias) or _are_one(alias, weights.aliases[alias]):
        return True
    return alias not in ties and any(_are_one(alias, each) for each in ties)


def _are_one(one: str, other: str) -> bool:
    """Return whether two names are equal except for a prefix."""
    return one.endswith(f".{other}") or other.endswith(f".{one}")


def _listed(weights: Checkpoint, chosen: Set[str]) -> str:
    pairs = (f"{alias} = {name}" for alias, name in weights.aliases.items() if alias in chosen)
    return ", ".join(pairs)


def _config_ties(checkpoint: Checkpoint) -> bool:
    path = checkpoint.model_sidecars.get("config.json")
    if path is None:
        return False
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (OSError, BadFile, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and ties_embeddings(config)


# Untie config.json if the weights have an output layer that differs from the embedding.
#
# transformers before 5, vLLM and others load only the embedding if config.json ties the two. So an
# output layer that was trained separately would be ignored.

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
