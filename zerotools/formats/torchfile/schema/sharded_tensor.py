"""FSDP1's ShardedTensor: local shards, each with its position in the whole.

The saved value is (local shards, metadata, process group, sharding spec, init_rrefs).

Source: torch/distributed/_shard/sharded_tensor/api.py (`ShardedTensor.__getstate__`).
"""

from __future__ import annotations

from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.formats.torchfile.schema.pieces import SHARDED, PartialTensor, attributes, counts
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.tensors import as_tensor


def pieces(state: Any) -> PartialTensor:
    """Return the blocks of a ShardedTensor that the saving rank has.

    Raises:
        BadFile: a shard has another shape than in its metadata, or lies outside the tensor.
    """
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[0], list):
        raise BadFile("a ShardedTensor does not have the five parts that torch saves")
    shards, about, group, _, _ = state
    metadata = attributes(about, "ShardedTensorMetadata")
    shape = counts(metadata.get("size"), "a ShardedTensor's shape")
    blocks = tuple(_block(shard, shape) for shard in shards)
    dtype = blocks[0][1].dtype if blocks else _dtype(metadata.get("tensor_properties"))
    ranks = attributes(group, "ShardedTensor.ProcessGroupState")
    return PartialTensor(
        dtype,
        shape,
        tuple(block for block in blocks if not block[0].is_empty),
        SHARDED,
        _count(ranks.get("global_rank")),
        _count(ranks.get("global_world_size")),
    )


def _block(shard: Any, shape: tuple[int, ...]) -> tuple[Box, StoredTensor]:
    fields = attributes(shard, "Shard")
    place = attributes(fields.get("metadata"), "ShardMetadata")
    start = counts(place.get("shard_offsets"), "a shard's offsets")
    sizes = counts(place.get("shard_sizes"), "a shard's sizes")
    tensor = as_tensor(fields.get("tensor"))
    if tensor is None or tensor.shape != sizes:
        held = "nothing" if tensor is None else f"shape {tensor.shape}"
        raise BadFile(f"a shard of a ShardedTensor has {held}, but its metadata has {sizes}")
    if len(start) != len(shape) or len(sizes) != len(shape):
        raise BadFile(f"a shard of {len(sizes)} dimensions is part of a tensor of {len(shape)}")
    box = Box(start, sizes)
    if not Box.whole(shape).contains(box):
        raise BadFile(f"a shard {box} is outside its tensor of shape {shape}")
    return box, tensor


def _dtype(properties: Any) -> DType:
    """Return the first part of TensorProperties' state, for a rank that holds no shard."""
    state = getattr(properties, "state", None)
    if not isinstance(state, tuple) or not state or not isinstance(state[0], DType):
        raise BadFile("a ShardedTensor without shards has no element type")
    return state[0]


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None
