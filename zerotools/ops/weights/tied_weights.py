"""Tied weights in formats that hold only weights: once, or under each of their names."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile
from zerotools.io.files.json_file import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG
from zerotools.io.huggingface.tied_by_default import ties_embeddings
from zerotools.ops.weights.reference_model import Reference


def resolve_aliases(
    weights: Checkpoint, *, keep: bool = False, like: Reference | None = None
) -> tuple[Checkpoint, list[str]]:
    """Leave tied names out where the model's config ties them again, else write them out.

    A reference model decides for itself: what it holds is written, what it lacks is not.
    """
    if like is not None and not keep:
        written = {alias for alias in weights.aliases if alias in like.tensors}
        why = f"as {like.path} does"
    elif keep or not _config_ties(weights):
        written = set(weights.aliases)
        why = "as asked" if keep else "no config.json says that they are tied"
    else:
        written, why = set(), "as config.json says"
    tensors = dict(weights.tensors)
    for alias, name in weights.aliases.items():
        if alias in written:
            tensors.setdefault(Key(alias, "param"), tensors[Key(name, "param")])
    notes = [
        f"tied weights are {how}, {why}: {_listed(weights, chosen)}"
        for how, chosen in (
            ("stored once", weights.aliases.keys() - written),
            ("written under each name", written),
        )
        if chosen
    ]
    dropped = {alias: name for alias, name in weights.aliases.items() if alias not in written}
    return replace(weights, tensors=tensors, aliases=dropped), notes


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
