"""Read the part of a tensor in one torch file: a whole tensor, FSDP2's DTensor or FSDP1's
ShardedTensor.

A DTensor consists of a local tensor and a description of how the whole tensor is split over a
device mesh. A dimension of `n` elements over `w` ranks is split as in torch.chunk: each rank gets
ceil(n / w) elements, until all are used.

Several mesh dimensions may split the same tensor dimension, one after the other. The first mesh
dimension splits first, unless `_StridedShard` or `shard_order` gives another order. The order is
different if FSDP2 is combined with tensor parallelism: FSDP2's mesh dimension is the first, but
FSDP2 splits the part that each tensor-parallel rank already has.

Source: torch/distributed/tensor/_utils.py (`compute_local_shape_and_global_offset`),
torch/distributed/tensor/placement_types.py (`_StridedShard`), torch/distributed/device_mesh.py
(`DeviceMesh`), torch 2.4 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.pickle_values import Global, StoredTensor, kind_text
from zerotools.io.torchzip.tree_tensors import PARAMETERS, WITH_STATE, as_tensor, is_plain

_STRIDED = "_StridedShard"
_NO_BLOCK = {
    "Partial": "its ranks hold partial sums; redistribute it to Shard or Replicate and save again",
    "_Partial": "its ranks hold partial sums; redistribute it to Shard or Replicate and save again",
    "_NormPartial": (
        "its ranks hold partial sums; redistribute it to Shard or Replicate and save again"
    ),
}


def dtensor_pieces(state: Any) -> PartialTensor:
    """Return the block of a DTensor that the saving rank holds.

    Raises:
        BadFile: the shape of the local tensor does not agree with the mesh and the placements.
        Unsupported: a placement does not split the tensor into blocks.
    """
    fields = state_attributes(state, DTENSOR)
    local = as_tensor(fields.get("_local_tensor"))
    if local is None:
        raise BadFile("a DTensor has no local tensor")
    spec = object_attributes(fields.get("_spec"), "DTensorSpec")
    mesh = object_attributes(spec.get("mesh"), "DeviceMesh")
    shape = _global_shape(spec)
    sizes, place = _mesh_sizes(mesh), _coordinates(mesh)
    box = Box.whole(shape)
    for size, coordinate, dim in _cuts(spec, sizes, place, len(shape)):
        box = _cut(box, dim, size, coordinate)
    if local.shape != box.shape:
        raise BadFile(
            f"a DTensor of shape {shape} has a local tensor of shape {local.shape}, but its mesh "
            f"{sizes} gives {box.shape}"
        )
    blocks = () if box.is_empty else ((box, local),)
    rank = mesh.get("_rank")
    return PartialTensor(
        local.dtype, shape, blocks, DTENSOR, rank if type(rank) is int else None, _ranks(mesh)
    )


def _global_shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    meta = spec.get("tensor_meta")
    if not isinstance(meta, Opaque) or not meta.args:
        raise BadFile("a DTensor does not have its global shape")
    return size_tuple(meta.args[0], "a DTensor's shape")


def _mesh_sizes(mesh: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of ranks along each dimension of the device mesh."""
    tensor = mesh.get("mesh")
    if isinstance(tensor, StoredTensor):
        return tensor.shape
    layout = object_attributes(mesh.get("_layout"), "_MeshLayout")
    if "axes" in layout:
        axes = [
            object_attributes(axis, "_FlatLayout").get("shape")
            for axis in _sequence(layout["axes"])
        ]
    else:
        shape = layout.get("shape")
        axes = list(shape) if isinstance(shape, tuple) else [shape]
    return tuple(_product(axis) for axis in axes)


def _product(axis: Any) -> int:
    """Return the number of ranks along one mesh dimension, which may combine several dimensions of
    a larger mesh.
    """
    if type(axis) is int and 0 < axis < 2**31:
        return axis
    return prod(size_tuple(axis, "the size of a mesh dimension"))


def _coordinates(mesh: Mapping[str, Any]) -> tuple[int, ...]:
    found = mesh.get("_coordinate_on_dim")
    if found is None:
        raise BadFile("a DTensor was saved by a rank outside of its mesh")
    return size_tuple(found, "a rank's coordinates in its mesh")


def _ranks(mesh: Mapping[str, Any]) -> int | None:
    """Return the number of ranks in the run: the size of the root mesh that contains this mesh."""
    for _ in range(8):
        root = mesh.get("_root_mesh")
        if not isinstance(root, Opaque):
            break
        mesh = object_attributes(root, "DeviceMesh")
    for name in ("_flatten_rank_map", "_flatten_mesh_list"):
        if isinstance(mesh.get(name), tuple):
            return len(mesh[name])
    return prod(_mesh_sizes(mesh))


def _cuts(
    spec: Mapping[str, Any], sizes: tuple[int, ...], place: tuple[int, ...], dimensions: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (number of ranks, coordinate of this rank, tensor dimension) for each mesh dimension
    that splits the tensor, in the order of the splits.
    """
    placements = _sequence(spec.get("placements"))
    if not len(placements) == len(sizes) == len(place):
        raise BadFile(
            f"a DTensor has {len(placements)} placements, {len(place)} coordinates and a mesh "
            f"of {len(sizes)} dimensions, but these numbers must be equal"
        )
    cuts: dict[int, list[int]] = {}
    for number in reversed(range(len(sizes))):
        if place[number] >= sizes[number]:
            raise BadFile(
                f"a DTensor's rank has coordinate {place[number]} in a mesh dimension of size "
                f"{sizes[number]}"
            )
        cut = _cut_of(placements[number], dimensions)
        if cut is not None:
            before = cuts.setdefault(cut.dimension, [])
            before.insert(_splits_before(cut.split_factor, [sizes[n] for n in before]), number)
    for dim, numbers in _recorded_split_order(spec):
        if set(numbers) == {*cuts.get(dim, ())}:
            cuts[dim] = numbers
    for dim, numbers in cuts.items():
        for number in numbers:
            yield sizes[number], place[number], dim


class _Placement(NamedTuple):
    """The split of a tensor by one mesh dimension.

    `dimension` is the tensor dimension that is split. `split_factor` is the number of parts into
    which earlier splits have divided it.
    """

    dimension: int
    split_factor: int


def _splits_before(split_factor: int, sizes: Sequence[int]) -> int:
    """Return how many of the first splits in `sizes` make `split_factor` parts together. `sizes`
    has the number of parts that each split makes.
    """
    before = next((n for n in range(len(sizes) + 1) if prod(sizes[:n]) == split_factor), None)
    if before is None:
        raise Unsupported(
            f"a DTensor has the placement _StridedShard with split factor {split_factor}, but "
            f"its mesh splits it into {' x '.join(map(str, sizes)) or 1}: a rank has more than "
            "one rectangular part, which zerotools does not read; save with DCP"
        )
    return before


def _cut_of(placement: Any, dimensions: int) -> _Placement | None:
    """Return the split that a placement makes; None if the placement replicates the tensor."""
    if not isinstance(placement, Opaque):
        raise BadFile(
            f"a DTensor has the placement {kind_text(placement)}, which is neither Shard nor "
            "Replicate"
        )
    if placement.name == "Replicate":
        return None
    if placement.name not in ("Shard", _STRIDED):
        why = _NO_BLOCK.get(placement.name, "zerotools does not know it")
        raise Unsupported(f"a DTensor has the placement {placement.name}: {why}")
    state = placement.state if isinstance(placement.state, dict) else {}
    dim = state.get("dim", next(iter(placement.args), None))
    factor: Any = 1
    if placement.name == _STRIDED:
        factor = state.get("split_factor", placement.kwargs.get("split_factor"))
        factor = placement.args[1] if factor is None and len(placement.args) > 1 else factor
    if type(dim) is not int or not -dimensions <= dim < dimensions:
        raise BadFile(f"a DTensor of {dimensions} dimensions is split along dimension {dim!r:.20}")
    if type(factor) is not int:
        raise BadFile(
            f"a DTensor's _StridedShard has the split factor {factor!r:.20}, which is not a "
            "whole number"
        )
    return _Placement(dim % dimensions, factor)


def _recorded_split_order(spec: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
    """Yield each split tensor dimension, with the mesh dimensions that split it in the order of the
    splits.

    Only some versions of torch record the order.
    """
    for entry in _sequence(spec.get("shard_order") or ()):
        if isinstance(entry, Opaque) and len(entry.args) == 2 and type(entry.args[0]) is int:
            yield entry.args[0], list(size_tuple(entry.args[1], "a DTensor's shard order"))


def _cut(box: Box, dim: int, size: int, coordinate: int) -> Box:
    """Return the part of `box` that the rank with index `coordinate` has if `size` ranks split the
    box along `dim`.
    """
    width = -(-box.shape[dim] // size)
    begin = min(box.shape[dim], width * coordinate)
    length = min(width, box.shape[dim] - begin)
    start, shape = list(box.start), list(box.shape)
    start[dim], shape[dim] = start[dim] + begin, length
    return Box(tuple(start), tuple(shape))


def _sequence(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list) or len(value) > 64:
        raise BadFile("a DTensor's mesh or placements are not a list of at most 64 values")
    return tuple(value)


WHOLE, DTENSOR, SHARDED = "", "DTensor", "ShardedTensor"


@dataclass(frozen=True, slots=True)
class PartialTensor:
    """A tensor of shape `shape`, and its blocks that are in one file.

    Attributes:
        kind: the way in which the tensor is split; WHOLE for a plain tensor.
        rank, ranks: the rank that saved the file, and the number of ranks; None if the value does
            not record them.
    """

    dtype: DType
    shape: tuple[int, ...]
    blocks: tuple[tuple[Box, StoredTensor], ...]
    kind: str = WHOLE
    rank: int | None = None
    ranks: int | None = None


def object_attributes(value: Any, name: str) -> Mapping[str, Any]:
    """Return the attributes of a pickled object of class `name`, from its `__dict__` and its slots.

    Raises:
        BadFile: the object has a different class.
    """
    if not isinstance(value, Opaque) or value.name != name:
        raise BadFile(f"a distributed tensor has a {type(value).__name__} instead of a {name}")
    return state_attributes(value.state, name)


def state_attributes(state: Any, name: str) -> Mapping[str, Any]:
    """Return the attributes in the pickled state of an object. The state is a dict, or a tuple
    (dict or None, dict of slots).
    """
    if isinstance(state, tuple) and len(state) == 2:
        parts = [part for part in state if part is not None]
        if all(isinstance(part, dict) for part in parts):
            return {key: value for part in parts for key, value in part.items()}
    if not isinstance(state, dict):
        raise BadFile(f"a {name} has no attributes")
    return state


def size_tuple(values: Any, what: str) -> tuple[int, ...]:
    """Check that `values` is a sequence of sizes or offsets, and return it as a tuple.

    Raises:
        BadFile: the value is not such a sequence.
    """
    if not isinstance(values, tuple | list) or len(values) > 64:
        raise BadFile(f"{what} is not a list of at most 64 counts")
    if not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise BadFile(f"{what} is not a list of counts")
    return tuple(values)


def sharded_pieces(state: Any) -> PartialTensor:
    """Return the blocks of a ShardedTensor (FSDP1) that the saving rank holds.

    The saved value is (local shards, metadata, process group, sharding spec, init_rrefs). Each
    local shard has its position in the whole tensor.

    Source: torch/distributed/_shard/sharded_tensor/api.py (`ShardedTensor.__getstate__`).

    Raises:
        BadFile: the shape of a shard differs from the shape in its metadata, or the shard is
            outside the tensor.
    """
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[0], list):
        raise BadFile("a ShardedTensor does not have the five parts that torch saves")
    shards, about, group, _, _ = state
    metadata = object_attributes(about, "ShardedTensorMetadata")
    shape = size_tuple(metadata.get("size"), "a ShardedTensor's shape")
    blocks = tuple(_block(shard, shape) for shard in shards)
    dtype = blocks[0][1].dtype if blocks else _dtype(metadata.get("tensor_properties"))
    ranks = object_attributes(group, "ShardedTensor.ProcessGroupState")
    return PartialTensor(
        dtype,
        shape,
        tuple(block for block in blocks if not block[0].is_empty),
        SHARDED,
        _count(ranks.get("global_rank")),
        _count(ranks.get("global_world_size")),
    )


def _block(shard: Any, shape: tuple[int, ...]) -> tuple[Box, StoredTensor]:
    fields = object_attributes(shard, "Shard")
    place = object_attributes(fields.get("metadata"), "ShardMetadata")
    start = size_tuple(place.get("shard_offsets"), "a shard's offsets")
    sizes = size_tuple(place.get("shard_sizes"), "a shard's sizes")
    tensor = as_tensor(fields.get("tensor"))
    if tensor is None or tensor.shape != sizes:
        held = "nothing" if tensor is None else f"shape {tensor.shape}"
        raise BadFile(
            f"a shard of a ShardedTensor has {held}, but its metadata has the shape {sizes}"
        )
    if len(start) != len(shape) or len(sizes) != len(shape):
        raise BadFile(f"a shard has {len(sizes)} dimensions, but its tensor has {len(shape)}")
    box = Box(start, sizes)
    if not Box.whole(shape).contains(box):
        raise BadFile(f"a shard {box} is outside its tensor of shape {shape}")
    return box, tensor


def _dtype(properties: Any) -> DType:
    """Return the dtype in the state of TensorProperties, for a rank that holds no shard."""
    state = getattr(properties, "state", None)
    if not isinstance(state, tuple) or not state or not isinstance(state[0], DType):
        raise BadFile("a ShardedTensor without shards has no dtype")
    return state[0]


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None


_DISTRIBUTED = "torch.distributed."


def partial_tensor_of(value: Any) -> PartialTensor | None:
    """Return `value` as a whole tensor or a part of a tensor; None if it is not a tensor.

    Raises:
        BadFile: the parts of a distributed tensor contradict each other.
        Unsupported: the tensor is not split into blocks, or has an unknown class.
    """
    plain = as_tensor(value)
    if plain is not None:
        return PartialTensor(plain.dtype, plain.shape, ((Box.whole(plain.shape), plain),))
    for _ in range(3):
        if not isinstance(value, Opaque) or not value.called:
            return None
        if (value.module, value.name) not in PARAMETERS or not value.args:
            break
        value = value.args[0]
    if (value.module, value.name) != WITH_STATE or len(value.args) != 4:
        return None
    _, kind, _, state = value.args
    return None if is_plain(kind) else _of_class(kind, state)


def _of_class(kind: Any, state: Any) -> PartialTensor:
    """Return the tensor in a pickled object of class `kind`, which is torch's DTensor or
    ShardedTensor. Raise Unsupported for any other class.
    """
    if isinstance(kind, Global) and kind.module.startswith(_DISTRIBUTED):
        if kind.name == DTENSOR:
            return dtensor_pieces(state)
        if kind.name == SHARDED:
            return sharded_pieces(state)
    raise Unsupported(f"a {kind!s:.200}, a kind of tensor that zerotools does not know")
