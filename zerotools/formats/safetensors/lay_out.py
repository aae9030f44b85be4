"""A Hugging Face model directory: weights in one or several safetensors files, index, companions.

Byte for byte what safetensors' own serializer makes of the same tensors, and sharded as
huggingface_hub shards: in key order, a file is full when the next tensor would exceed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, FilePlan, Key, Literal, Target, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.safetensors.header import LARGEST_HEADER, METADATA
from zerotools.io.modelfiles import companion_plans, file_name, index_of, keys_by_name, shards_of

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
    keys = keys_by_name(source, forbidden=(METADATA,))
    for key, tensor in source.tensors.items():
        if tensor.dtype.safetensors is None:
            raise Unsupported(f"{key} is {tensor.dtype}, which safetensors does not hold")
    shards = shards_of({name: source.tensors[key] for name, key in keys.items()}, max_shard_bytes)
    plans: dict[str, FilePlan] = {}
    tensors: dict[Key, Tensor] = {}
    for number, shard in enumerate(shards, 1):
        file = file_name("model", ".safetensors", number, len(shards))
        header, offsets = _header(shard, metadata or {"format": "pt"})
        size = len(header) + sum(tensor.nbytes for tensor in shard.values())
        plans[file] = FilePlan(size, [Literal(0, header)])
        for name, tensor in shard.items():
            chunk = Chunk(Box.whole(tensor.shape), file, offsets[name])
            tensors[keys[name]] = Tensor(tensor.dtype, tensor.shape, (chunk,))
    if len(shards) > 1:
        plans[INDEX] = index_of(tensors)
    plans |= companion_plans(source, tensors.values())
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
