"""A Hugging Face model directory: weights in one or several safetensors files, index, companions.

Byte for byte what safetensors' own serializer makes of the same tensors, and sharded as
huggingface_hub shards: in key order, a file is full when the next tensor would exceed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import (
    Carried,
    Checkpoint,
    Chunk,
    FilePlan,
    Key,
    Literal,
    Target,
    Tensor,
)
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.safetensors.config import adapted_config, weights_dtype
from zerotools.formats.safetensors.header import LARGEST_HEADER, METADATA
from zerotools.io.companions import CONFIG

ROLES = ("param", "buffer")
INDEX = "model.safetensors.index.json"

# Within a file the reference sorts by type, in the descending order of its enum, then by name.
_ORDER = {
    dtype: rank
    for rank, dtype in enumerate(
        (
            dtypes.UINT64, dtypes.INT64, dtypes.FLOAT64, dtypes.COMPLEX64, dtypes.FLOAT32,
            dtypes.UINT32, dtypes.INT32, dtypes.BFLOAT16, dtypes.FLOAT16, dtypes.UINT16,
            dtypes.INT16, dtypes.FLOAT8_E5M2FNUZ, dtypes.FLOAT8_E4M3FNUZ, dtypes.FLOAT8_E8M0FNU,
            dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.INT8, dtypes.UINT8, dtypes.BOOL,
        )
    )
}  # fmt: skip


def lay_out(
    source: Checkpoint,
    destination: Path,
    *,
    max_shard_bytes: int,
    metadata: Mapping[str, str] | None = None,
) -> Target:
    """Lay out the weights of `source` in `destination`, under their names and in their types.

    Only the roles `param` and `buffer` may be there: selecting and casting come before. Aliases
    are left out. A tensor larger than `max_shard_bytes` gets a file of its own. `metadata` is the
    files' `__metadata__`, by default `{"format": "pt"}`, which loaders ask for.

    Raises:
        BadRequest: nothing to write, another role, two tensors of one name, or a bad shard size.
        Unsupported: an element type that safetensors lacks.
    """
    if max_shard_bytes < 1:
        raise BadRequest(f"a shard holds at least 1 byte, not {max_shard_bytes}")
    keys = _keys_by_name(source)
    shards = _shards({name: source.tensors[key] for name, key in keys.items()}, max_shard_bytes)
    plans: dict[str, FilePlan] = {}
    tensors: dict[Key, Tensor] = {}
    for number, shard in enumerate(shards, 1):
        file = _file_name(number, len(shards))
        header, offsets = _header(shard, metadata or {"format": "pt"})
        size = len(header) + sum(tensor.nbytes for tensor in shard.values())
        plans[file] = FilePlan(size, [Literal(0, header)])
        for name, tensor in shard.items():
            chunk = Chunk(Box.whole(tensor.shape), file, offsets[name])
            tensors[keys[name]] = Tensor(tensor.dtype, tensor.shape, (chunk,))
    if len(shards) > 1:
        plans[INDEX] = _literal(_index(tensors))
    plans |= _companions(source, tensors.values())
    checkpoint = replace(
        source,
        root=destination,
        tensors=tensors,
        origin=replace(source.origin, format="safetensors", path=destination, notes=(), details={}),
        aliases={},
        state={},
        files={name: plan.size for name, plan in plans.items()},
        companions={},
        problems=(),
    )
    return Target(checkpoint, plans)


def _keys_by_name(source: Checkpoint) -> dict[str, Key]:
    if not source.tensors:
        raise BadRequest(f"{source.origin.path} has no weights to write")
    keys: dict[str, Key] = {}
    for key, tensor in source.tensors.items():
        if key.role not in ROLES:
            raise BadRequest(f"{key} is no weight, and safetensors holds only weights")
        if key.name in keys or key.name == METADATA:
            raise BadRequest(f"{key.name} cannot be written twice, nor a tensor called {METADATA}")
        if tensor.dtype.safetensors is None:
            raise Unsupported(f"{key} is {tensor.dtype}, which safetensors does not hold")
        keys[key.name] = key
    return keys


def _shards(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """Fill files in order; one that is larger than a file goes into its own, and does not end
    the file that is being filled."""
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


def _file_name(number: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _header(
    shard: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """The file's first bytes, padded with spaces to a multiple of 8, and each tensor's offset."""
    tree: dict[str, object] = {METADATA: dict(metadata)}
    relative: dict[str, int] = {}
    at = 0
    for name in sorted(shard, key=lambda name: (_ORDER[shard[name].dtype], name.encode())):
        tensor = shard[name]
        relative[name] = at
        tree[name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER:
        raise BadRequest(
            f"a header of {len(text)} bytes is longer than the {LARGEST_HEADER} that readers "
            "accept; choose a smaller --max-shard-size"
        )
    begin = 8 + len(text)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: begin + offset for name, offset in relative.items()}


def _index(tensors: Mapping[Key, Tensor]) -> bytes:
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {key.name: tensor.chunks[0].file for key, tensor in sorted(tensors.items())}
    tree = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def _companions(source: Checkpoint, tensors: Iterable[Tensor]) -> dict[str, FilePlan]:
    plans: dict[str, FilePlan] = {}
    for name, path in source.companions.items():
        text = adapted_config(path, weights_dtype(tensors)) if name == CONFIG else None
        plans[name] = _carried(path) if text is None else _literal(text)
    return plans


def _carried(path: Path) -> FilePlan:
    size = path.stat().st_size
    return FilePlan(size, carried=[Carried(0, path, 0, size)])


def _literal(data: bytes) -> FilePlan:
    return FilePlan(len(data), [Literal(0, data)])
