"""`.metadata` as checked values.

The file is a pickle of torch.distributed.checkpoint.metadata.Metadata; it is read as a tree and its
classes are recognised by name. Everything that later code relies on is checked here: file names
stay below the directory, chunks lie inside their tensors, each chunk has an item, and counts are
whole numbers of at least 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.metadata_memory_limit import data_in, may_be_read
from zerotools.io.files.regular_files import check_regular, read_regular
from zerotools.io.torchzip.pickle_values import kind_text
from zerotools.io.torchzip.unpickle import loads

LARGEST_METADATA = 2**30
# Attributes that megatron-core adds: versions up to 0.14, and version 0.16.
_MEGATRON = frozenset({"mcore_data", "all_local_plans"})
_FIELDS = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")


@dataclass(frozen=True, slots=True)
class Item:
    """One saved value: `length` bytes from byte `offset` of the data file `file`, which is next to
    `.metadata`.
    """

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor in `.metadata`: its boxes that are not empty, and the item that contains each of
    them.
    """

    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[tuple[Box, Item], ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The contents of one `.metadata`.

    Attributes:
        blobs: the values that are not tensors.
        paths: flat key -> path in the nested state dict (torch calls this planner_data); None if it
            was not recorded.
        extras: attributes in the file that torch's Metadata does not have, except empty ones.
        empty: the items of empty chunks.
        is_megatron: True if only megatron-core can have written this file.
        unflattened: the true shape of each tensor that megatron-core (up to 0.15) stored in flat
            parts.
    """

    tensors: Mapping[str, SavedTensor]
    blobs: Mapping[str, Item]
    paths: Mapping[str, tuple[str | int, ...]] | None = None
    version: str | None = None
    order: tuple[str, ...] = field(default=())
    empty: tuple[Item, ...] = ()
    extras: tuple[str, ...] = ()
    is_megatron: bool = False
    unflattened: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def items(self) -> list[tuple[str, Item]]:
        """The (flat key, item) of every chunk of a tensor, and of every value that is not a
        tensor.
        """
        found = [(key, item) for key, saved in self.tensors.items() for _, item in saved.parts]
        return found + list(self.blobs.items())

    def empty_archives(self) -> dict[str, dict[int, int]]:
        """Return the positions of the archives of empty chunks: {file: {offset: length}}, in
        bytes.
        """
        found: dict[str, dict[int, int]] = {}
        for item in self.empty:
            found.setdefault(item.file, {})[item.offset] = item.length
        return found

    def ends(self) -> dict[str, int]:
        """Return the end of the last item in each file, in bytes, keyed by file name."""
        found: dict[str, int] = {}
        for item in (*(item for _, item in self.items), *self.empty):
            found[item.file] = max(found.get(item.file, 0), item.offset + item.length)
        return found


def read_metadata(path: Path) -> Metadata:
    """Read and check a `.metadata` file.

    Raises:
        BadFile: the file is damaged, or contradicts itself.
        Unsupported: items are compressed or encrypted, or have an unknown dtype.
    """

    def data_size() -> int:
        return max(0, data_in(path.parent) - size)

    check_regular(path)
    if not may_be_read(size := path.stat().st_size, data_size):
        raise BadFile(
            f"{path} has {size} bytes, more than in any real checkpoint with {data_size()} bytes "
            "of data: the file was made to fill the memory; do not use it"
        )
    tree = loads(read_regular(path, LARGEST_METADATA), source=path, data_size=data_size)
    return _Reader(path).metadata(tree)


class _Reader:
    """Checks the tree of one `.metadata` file. `path` is named in messages."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def metadata(self, tree: Any) -> Metadata:
        # megatron-core 0.15 writes a subclass with the same fields.
        name = "MCoreMetadata" if getattr(tree, "name", None) == "MCoreMetadata" else "Metadata"
        state = self._state(tree, name)
        entries, stored = state.get("state_dict_metadata"), state.get("storage_data")
        if not isinstance(entries, dict) or not isinstance(stored, dict):
            raise self._bad("has no state_dict_metadata or storage_data")
        items = self._items(stored)
        tensors: dict[str, SavedTensor] = {}
        blobs: dict[str, Item] = {}
        for key, entry in entries.items():
            if not isinstance(key, str):
                raise self._bad(f"has the key {key!r:.40} instead of a name")
            if isinstance(entry, Opaque) and entry.name == "BytesStorageMetadata":
                blobs[key] = self._item(items, key, None)
            else:
                tensors[key] = self._tensor(key, self._state(entry, "TensorStorageMetadata"), items)
        used = {item for saved in tensors.values() for _, item in saved.parts} | {*blobs.values()}
        version = state.get("version")
        return Metadata(
            tensors,
            blobs,
            self._paths(state.get("planner_data")),
            version if isinstance(version, str) else None,
            tuple(entries),
            tuple(item for item in items.values() if item not in used),
            tuple(str(key)[:80] for key, value in state.items() if key not in _FIELDS and value),
            is_megatron=name != "Metadata" or not _MEGATRON.isdisjoint(map(str, state)),
            unflattened=dict(self._true_shapes(state.get("mcore_data"), tensors)),
        )

    def _true_shapes(
        self, noted: Any, tensors: Mapping[str, SavedTensor]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the key and the true shape of each tensor in `noted`, which is megatron-core's
        `mcore_data`.
        """
        for key, facts in noted.items() if isinstance(noted, dict) else ():
            shape = facts.get("nd_reformulated_orig_global_shape") if isinstance(facts, dict) else 0
            if shape is not None and shape != 0 and key in tensors:
                found = self._counts(key, tuple(shape) if isinstance(shape, list) else shape)
                if prod(found) != prod(tensors[key].shape):
                    raise self._bad(
                        f"gives {key} the shape {found}, but its stored parts have the shape "
                        f"{tensors[key].shape}"
                    )
                yield key, found

    def _items(self, stored: dict[Any, Any]) -> dict[tuple[str, Any], Item]:
        items = {}
        for index, info in stored.items():
            at = self._state(index, "MetadataIndex")
            key, offset = at.get("fqn"), at.get("offset")
            if not isinstance(key, str) or not (offset is None or isinstance(offset, tuple)):
                raise self._bad("has a stored item without a name")
            place = None if offset is None else self._counts(key, offset)
            items[key, place] = self._info(key, self._state(info, "_StorageInfo"))
        return items

    def _info(self, key: str, state: Mapping[str, Any]) -> Item:
        if state.get("transform_descriptors"):
            raise Unsupported(
                f"{self._path}: the data of {key} was transformed when it was saved "
                f"({state['transform_descriptors']!r:.80}), which zerotools cannot read; save the "
                "checkpoint again without StreamTransformExtension"
            )
        file = state.get("relative_path")
        if not isinstance(file, str) or not stays_below_root(file):
            raise self._bad(
                f"puts {key} in {file!r:.80}, which is not below the checkpoint's directory"
            )
        offset, length = self._counts(key, (state.get("offset"), state.get("length")))
        return Item(file, offset, length)

    def _tensor(
        self, key: str, state: Mapping[str, Any], items: dict[tuple[str, Any], Item]
    ) -> SavedTensor:
        dtype, shape = (
            self._dtype(key, state.get("properties")),
            self._counts(key, state.get("size")),
        )
        chunks = state.get("chunks")
        if not isinstance(chunks, list):
            raise self._bad(f"has no list of chunks for {key}")
        parts = []
        for chunk in chunks:
            box = self._box(key, shape, self._state(chunk, "ChunkStorageMetadata"))
            if not box.is_empty:
                parts.append((box, self._item(items, key, box.start)))
        return SavedTensor(dtype, shape, tuple(parts))

    def _box(self, key: str, shape: tuple[int, ...], state: Mapping[str, Any]) -> Box:
        start, sizes = (
            self._counts(key, state.get("offsets")),
            self._counts(key, state.get("sizes")),
        )
        if len(start) != len(shape) or len(sizes) != len(shape):
            raise self._bad(f"gives {key} of shape {shape} a chunk of {len(sizes)} dimensions")
        box = Box(start, sizes)
        if not Box.whole(shape).contains(box):
            raise self._bad(
                f"gives {key} of shape {shape} the chunk {box}, which is outside of this shape"
            )
        return box

    def _dtype(self, key: str, properties: Any) -> DType:
        state = properties.state if isinstance(properties, Opaque) else None
        dtype = state[0] if isinstance(state, tuple) and state else None
        if isinstance(state, dict):
            dtype = state.get("dtype")
        if not isinstance(dtype, DType):
            raise Unsupported(
                f"{self._path}: {key} has the dtype {dtype!s:.60}, which zerotools does not know; "
                "save it in another dtype"
            )
        return dtype

    def _item(self, items: dict[tuple[str, Any], Item], key: str, place: Any) -> Item:
        item = items.get((key, place))
        if item is None:
            where = "" if place is None else f" the chunk at {place} of"
            raise self._bad(f"does not say where{where} {key} is stored")
        return item

    def _paths(self, planned: Any) -> dict[str, tuple[str | int, ...]] | None:
        if not isinstance(planned, dict):
            return None
        paths = {}
        for key, path in planned.items():
            parts = path if isinstance(path, tuple) else (path,)
            if not isinstance(key, str) or not all(isinstance(part, str | int) for part in parts):
                raise self._bad(
                    f"gives {key!r:.60} a path with parts that are neither names nor numbers"
                )
            paths[key] = parts
        return paths

    def _counts(self, key: str, values: Any) -> tuple[int, ...]:
        if isinstance(values, tuple) and all(type(v) is int and 0 <= v < 2**62 for v in values):
            return tuple(values)
        raise self._bad(
            f"has {values!r:.60} as sizes or offsets of {key}, but they must be whole numbers"
        )

    def _state(self, value: Any, name: str) -> Mapping[str, Any]:
        """Return the attributes of an unpickled object. Its class must have the name `name`; the
        module may be any.
        """
        if isinstance(value, Opaque) and value.name == name:
            state = value.state
            # dataclass(slots=True) and frozen classes pickle (None, attributes).
            if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
                state = state[1]
            if state is None:
                return {}
            if isinstance(state, dict):
                return state
        raise self._bad(f"has {kind_text(value)} instead of {name}")

    def _bad(self, message: str) -> BadFile:
        return BadFile(f"{self._path} {message}; copy or download it again")
