"""`.metadata` as torch writes it, out of checked values.

The classes are those of torch.distributed.checkpoint.metadata and .filesystem; each is written as
`cls.__new__` and the attributes that torch 2.x sets. The path of the save, which torch records, is
left out: it would tell where the files once lay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.formats.dcp.metadata import Item
from zerotools.io.torchzip.pickles import dumps
from zerotools.io.torchzip.values import Size

_MODULE = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
_VERSION = "1.0.0"


@dataclass(frozen=True, slots=True)
class Written:
    """One item of the new checkpoint: a chunk of a tensor, or (all three None) another value."""

    key: str
    item: Item
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None
    box: Box | None = None


def metadata_bytes(
    written: Iterable[Written], paths: Mapping[str, tuple[str | int, ...]] | None
) -> bytes:
    """The pickle of `.metadata`. `written` is in the order in which torch would have planned it:
    rank by rank; chunks keep that order."""
    entries: dict[str, Opaque] = {}
    stored: dict[Opaque, Opaque] = {}
    properties: dict[DType, Opaque] = {}
    for one in written:
        index: dict[str, Any] = {"fqn": one.key, "index": None}
        if one.box is None or one.dtype is None or one.shape is None:
            entries[one.key] = _new("BytesStorageMetadata", {})
        else:
            if one.key not in entries:
                shared = properties.setdefault(one.dtype, _properties(one.dtype))
                entries[one.key] = _tensor(shared, one.shape)
            chunks: list[Opaque] = entries[one.key].state["chunks"]
            index |= {"index": len(chunks), "offset": Size(one.box.start)}
            sizes = {"offsets": Size(one.box.start), "sizes": Size(one.box.shape)}
            chunks.append(_new("ChunkStorageMetadata", sizes))
        stored[_new("MetadataIndex", index)] = _info(one.item)
    meta: dict[str, Any] = {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []}
    tree = {
        "state_dict_metadata": entries,
        "planner_data": None if paths is None else dict(paths),
        "storage_data": stored,
        "storage_meta": _new("StorageMeta", meta),
        "version": _VERSION,
    }
    return dumps(_new("Metadata", tree))


def _new(name: str, state: dict[str, Any], module: str = _MODULE) -> Opaque:
    return Opaque(module, name, state=state or None)


def _info(item: Item) -> Opaque:
    state = {"relative_path": item.file, "offset": item.offset, "length": item.length}
    return _new("_StorageInfo", state, _FILESYSTEM)


def _tensor(properties: Opaque, shape: tuple[int, ...]) -> Opaque:
    state = {"properties": properties, "size": Size(shape), "chunks": []}
    return _new("TensorStorageMetadata", state)


def _properties(dtype: DType) -> Opaque:
    """(dtype, layout, requires_grad, memory format, pin_memory); all but the first deprecated."""
    layout = Opaque("torch.serialization", "_get_layout", ("torch.strided",), called=True)
    contiguous = Opaque(_MODULE, "_MEM_FORMAT_ENCODING", (0,), called=True)
    state = (dtype, layout, False, contiguous, False)
    return Opaque(_MODULE, "TensorProperties", state=state)
