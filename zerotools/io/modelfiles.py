"""What the model directories of Hugging Face have in common, whatever format the weights are in.

Weights lie in one file or in several with an index; config and tokenizer files lie beside them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from zerotools.core.checkpoint import Carried, Checkpoint, FilePlan, Key, Literal, Tensor
from zerotools.core.errors import BadRequest
from zerotools.io.companions import CONFIG
from zerotools.io.modelconfig import adapted_config, weights_dtype

ROLES = ("param", "buffer")


def keys_by_name(source: Checkpoint, forbidden: Collection[str] = ()) -> dict[str, Key]:
    """The key of every name, in the source's order.

    Raises:
        BadRequest: no tensors at all, one that is no weight, two of one name, or a forbidden name.
    """
    if not source.tensors:
        raise BadRequest(f"{source.origin.path} has no weights to write")
    keys: dict[str, Key] = {}
    for key in source.tensors:
        if key.role not in ROLES:
            raise BadRequest(f"{key} is no weight, and a model holds only weights")
        if key.name in keys:
            raise BadRequest(f"{keys[key.name]} and {key} cannot both be written as {key.name}")
        if key.name in forbidden:
            raise BadRequest(f"a tensor cannot be called {key.name}; rename it")
        keys[key.name] = key
    return keys


def shards_of(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """Fill files of at most `most` bytes in order, as huggingface_hub does.

    A tensor that is larger than a file goes into its own, and does not end the file that is being
    filled.

    Raises:
        BadRequest: `most` is less than one byte.
    """
    if most < 1:
        raise BadRequest(f"a shard holds at least 1 byte, not {most}")
    shards: list[dict[str, Tensor]] = []
    current: dict[str, Tensor] = {}
    filled = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > most:
            shards.append({name: tensor})
            continue
        if filled + tensor.nbytes > most:
            shards.append(current)
            current, filled = {}, 0
        current[name] = tensor
        filled += tensor.nbytes
    return [*shards, current] if current else shards


def file_name(stem: str, suffix: str, number: int, count: int) -> str:
    """The name of file `number` (from 1) of `count`."""
    return f"{stem}{suffix}" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def index_of(tensors: Mapping[Key, Tensor]) -> FilePlan:
    """The index that says which file holds which name; each tensor is one chunk."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {key.name: tensor.chunks[0].file for key, tensor in sorted(tensors.items())}
    tree = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return literal((json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode())


def companion_plans(source: Checkpoint, tensors: Iterable[Tensor]) -> dict[str, FilePlan]:
    """The source's companions as they are, but for the type of the weights in config.json."""
    plans: dict[str, FilePlan] = {}
    for name, path in source.companions.items():
        text = adapted_config(path, weights_dtype(tensors)) if name == CONFIG else None
        plans[name] = _carried(path) if text is None else literal(text)
    return plans


def _carried(path: Path) -> FilePlan:
    size = path.stat().st_size
    return FilePlan(size, carried=[Carried(0, path, 0, size)])


def literal(data: bytes) -> FilePlan:
    """A file whose every byte is known."""
    return FilePlan(len(data), [Literal(0, data)])
