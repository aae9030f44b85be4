"""Torch files made without torch: arrays, DTensors and ShardedTensors in a saved tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.io.torchzip.archives import archive_bytes
from zerotools.core import dtypes
from zerotools.core.boxes import row_major_strides
from zerotools.core.checkpoint import Opaque
from zerotools.io.torchzip.pickle_values import Global, Size, Storage, StoredTensor

_API = "torch.distributed._shard.sharded_tensor"


def replicate() -> Opaque:
    return Opaque("torch.distributed.tensor.placement_types", "Replicate")


def shard(dim: int, name: str = "Shard") -> Opaque:
    return Opaque("torch.distributed.tensor.placement_types", name, state={"dim": dim})


def strided(dim: int, split_factor: int) -> Opaque:
    state = {"dim": dim, "split_factor": split_factor}
    return Opaque("torch.distributed.tensor.placement_types", "_StridedShard", state=state)


class Saved:
    """Collects the storages of one file."""

    def __init__(self) -> None:
        self._storages: list[bytes] = []

    def tensor(self, values: Any) -> StoredTensor:
        array: Any = np.ascontiguousarray(values)
        dtype = dtypes.dtype_named(array.dtype.name)
        storage = Storage(str(len(self._storages)), dtype, array.size)
        self._storages.append(array.tobytes())
        shape = np.shape(values)
        return StoredTensor(storage, dtype, 0, shape, row_major_strides(shape))

    def dtensor(
        self,
        values: Any,
        shape: tuple[int, ...],
        placements: Sequence[Opaque],
        mesh: dict[str, Any],
    ) -> Opaque:
        """This rank's `values` of a DTensor of `shape`; `mesh` as `mesh_of` makes it."""
        local = self.tensor(values)
        spec = {
            "mesh": Opaque("torch.distributed.device_mesh", "DeviceMesh", state=mesh),
            "placements": tuple(placements),
            "tensor_meta": Opaque("spec", "TensorMeta", (Size(shape), (), local.dtype)),
        }
        state = {"_local_tensor": local, "_spec": Opaque("spec", "DTensorSpec", state=spec)}
        return wrapped("torch.distributed.tensor", "DTensor", (None, state))

    def sharded(
        self, values: Any, start: list[int], shape: tuple[int, ...], rank: int, ranks: int
    ) -> Opaque:
        """This rank's one shard of a ShardedTensor."""
        local = self.tensor(values)
        place = {"shard_offsets": start, "shard_sizes": list(local.shape)}
        metadata = Opaque("torch.distributed._shard.metadata", "ShardMetadata", state=(None, place))
        held = {"tensor": local, "metadata": metadata}
        about = {"shards_metadata": [metadata], "size": Size(shape)}
        group = {"global_rank": rank, "global_world_size": ranks}
        state = (
            [Opaque(f"{_API}.shard", "Shard", state=(None, held))],
            Opaque(f"{_API}.metadata", "ShardedTensorMetadata", state=about),
            Opaque(f"{_API}.api", "ShardedTensor.ProcessGroupState", state=group),
            None,
            False,
        )
        return wrapped(f"{_API}.api", "ShardedTensor", state)

    def write(self, path: Path, tree: Any) -> Path:
        path.write_bytes(archive_bytes(tree, self._storages))
        return path


def wrapped(module: str, name: str, state: Any) -> Opaque:
    """A tensor of another class, as torch pickles it."""
    rebuild = Global("torch._utils", "_rebuild_wrapper_subclass")
    args = (rebuild, Global(module, name), (), state)
    return Opaque("torch._tensor", "_rebuild_from_type_v2", args, called=True)


def mesh_of(sizes: Sequence[int], place: Sequence[int], rank: int) -> dict[str, Any]:
    """A DeviceMesh's attributes as torch 2.13 has them."""
    axes = tuple(
        Opaque("layout", "_FlatLayout", state={"shape": (n,) if n > 1 else (), "stride": ()})
        for n in sizes
    )
    return {
        "_layout": Opaque("layout", "_MeshLayout", state={"axes": axes}),
        "_flatten_rank_map": tuple(range(int(np.prod(sizes)))),
        "_coordinate_on_dim": tuple(place),
        "_rank": rank,
        "_root_mesh": None,
    }
