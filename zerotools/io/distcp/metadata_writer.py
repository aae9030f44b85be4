"""Write `.metadata` as torch does.

Objects of the classes in torch.distributed.checkpoint.metadata and .filesystem are written. Each
object is written as `cls.__new__` with the attributes that torch 2.x sets. The path of the save,
which torch records, is omitted: it would reveal the old path of the files.

A large checkpoint has millions of chunks, so the opcodes of the pickle (protocol 2) are written
directly, without a tree of objects.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zerotools.core.boxes import Box
from zerotools.core.dtypes import DType
from zerotools.io.distcp.metadata import Item

_MODULE = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
_VERSION = "1.0.0"
# The number of entries that Python's pickle writes with one SETITEMS or APPENDS.
_BATCH = 1000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WrittenItem:
    """One item of the new checkpoint: a chunk of a tensor, or another value. For another value, the
    three fields that describe a chunk are None.
    """

    key: str
    item: Item
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None
    box: Box | None = None


def metadata_bytes(
    written: Sequence[WrittenItem], paths: Mapping[str, tuple[str | int, ...]] | None
) -> bytes:
    """Return the pickle of `.metadata` for the items `written`.

    The chunks of a tensor keep the order of `written`. Torch writes them rank by rank, in the order
    of its plan.
    """
    by_key: dict[str, list[WrittenItem]] = {}
    for one in written:
        by_key.setdefault(one.key, []).append(one)
    return _Metadata().whole(written, by_key, paths)


class _Opcodes:
    """A pickle that is being written. A name or text that was written before is written as a
    reference to its number in the memo.
    """

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self._memo: dict[object, bytes] = {}

    def write_reference(self, key: object) -> bool:
        """Write a reference to the value that was memoized under `key`. Return False if there is no
        such value.
        """
        number = self._memo.get(key)
        if number is not None:
            self.out += number
        return number is not None

    def remember(self, key: object) -> None:
        """Memoize the value that was written last, under `key`."""
        number = struct.pack("<I", len(self._memo))
        self._memo[key] = b"j" + number
        self.out += b"r" + number

    def named(self, module: str, name: str) -> None:
        if not self.write_reference((module, name)):
            self.out += f"c{module}\n{name}\n".encode()
            self.remember((module, name))

    def add(self, data: bytes) -> None:
        self.out += data

    def text(self, value: str) -> None:
        if not self.write_reference(value):
            data = value.encode()
            self.out += b"X" + struct.pack("<I", len(data)) + data
            self.remember(value)

    def number(self, value: int) -> None:
        if 0 <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"\x8a" + bytes([len(data)]) + data

    def parts(self, values: Iterable[str | int]) -> None:
        self.out += b"("
        for value in values:
            if isinstance(value, str):
                self.text(value)
            else:
                self.number(value)
        self.out += b"t"

    def size(self, values: tuple[int, ...]) -> None:
        """Write a torch.Size."""
        if not self.write_reference(values):
            self.named("torch", "Size")
            self.parts(values)
            self.out += b"\x85R"
            self.remember(values)

    def new(self, name: str, module: str = _MODULE) -> None:
        """Write an instance without attributes."""
        self.named(module, name)
        self.out += b")\x81"


class _Metadata(_Opcodes):
    def whole(
        self,
        written: Iterable[WrittenItem],
        by_key: Mapping[str, Sequence[WrittenItem]],
        paths: Mapping[str, tuple[str | int, ...]] | None,
    ) -> bytes:
        self.new("Metadata")
        self.add(b"}(")
        self.text("state_dict_metadata")
        self._table(by_key.items(), lambda pair: self._entry(*pair))
        self.text("planner_data")
        if paths is None:
            self.add(b"N")
        else:
            self._table(paths.items(), lambda pair: self._path(*pair))
        self.text("storage_data")
        counts: dict[str, int] = {}
        self._table(written, lambda one: self._stored(one, counts))
        self.text("storage_meta")
        self._storage_meta()
        self.text("version")
        self.text(_VERSION)
        self.add(b"ub.")
        return bytes(self.out)

    def _table(self, values: Iterable[_T], write: Callable[[_T], None]) -> None:
        """Write a dict. `write` writes one key and its value."""
        self.add(b"}(")
        for number, value in enumerate(values, 1):
            write(value)
            if number % _BATCH == 0:
                self.add(b"u(")
        self.add(b"u")

    def _path(self, key: str, path: tuple[str | int, ...]) -> None:
        self.text(key)
        self.parts(path)

    def _entry(self, key: str, chunks: Sequence[WrittenItem]) -> None:
        self.text(key)
        first = chunks[0]
        if first.dtype is None or first.shape is None:
            self.new("BytesStorageMetadata")
            return
        self.new("TensorStorageMetadata")
        self.add(b"}(")
        self.text("properties")
        self._properties(first.dtype)
        self.text("size")
        self.size(first.shape)
        self.text("chunks")
        self.add(b"](")
        for chunk in chunks:
            if chunk.box is not None:
                self._chunk(chunk.box)
        self.add(b"eub")

    def _chunk(self, box: Box) -> None:
        self.new("ChunkStorageMetadata")
        self.add(b"}(")
        self.text("offsets")
        self.size(box.start)
        self.text("sizes")
        self.size(box.shape)
        self.add(b"ub")

    def _properties(self, dtype: DType) -> None:
        """Write the properties of a tensor: (dtype, layout, requires_grad, memory format,
        pin_memory). All except the first are deprecated.
        """
        if self.write_reference(dtype):
            return
        self.new("TensorProperties")
        self.add(b"(")
        self.named("torch", dtype.name)
        self.named("torch.serialization", "_get_layout")
        self.parts(("torch.strided",))
        self.add(b"R\x89")
        self.named(_MODULE, "_MEM_FORMAT_ENCODING")
        self.parts((0,))
        self.add(b"R\x89tb")
        self.remember(dtype)

    def _stored(self, one: WrittenItem, counts: dict[str, int]) -> None:
        """Write the MetadataIndex and the _StorageInfo (file, offset, length) of the item `one`."""
        self.new("MetadataIndex")
        self.add(b"}(")
        self.text("fqn")
        self.text(one.key)
        self.text("index")
        if one.box is None:
            self.add(b"N")
        else:
            self.number(counts.get(one.key, 0))
            counts[one.key] = counts.get(one.key, 0) + 1
            self.text("offset")
            self.size(one.box.start)
        self.add(b"ub")
        self.new("_StorageInfo", _FILESYSTEM)
        self.add(b"}(")
        self.text("relative_path")
        self.text(one.item.file)
        self.text("offset")
        self.number(one.item.offset)
        self.text("length")
        self.number(one.item.length)
        self.add(b"ub")

    def _storage_meta(self) -> None:
        self.new("StorageMeta")
        self.add(b"}(")
        for name in ("checkpoint_id", "save_id", "load_id"):
            self.text(name)
            self.add(b"N")
        self.text("modules")
        self.add(b"]ub")
