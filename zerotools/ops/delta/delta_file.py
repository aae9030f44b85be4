"""Read and write the file of a delta: a header, the blocks of all tensors, and a digest.

    "ZTDELTA\\n"                                        8 bytes
    length of the header, the header in JSON           u64, bytes
    length of the plain bytes, the plain bytes         u64, bytes (zstd; they belong to no tensor)
    for each tensor of the header, for each block:     a head of 48 bytes, positions, values
    "ZTDELEND", number of blocks, digest               8 bytes, u64, 16 bytes

All numbers are little-endian. The digest is the XXH3-128 of all bytes before it. The file is
written from its beginning to its end, so it can go through a pipe.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import xxhash

import zerotools
from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.ops.delta.block_codec import BLOCK_ELEMENTS, DeltaBlockKind, Elements, EncodedBlock

VERSION = 1
MAGIC, END = b"ZTDELTA\n", b"ZTDELEND"
_HEAD = struct.Struct("<BxxxIII16s16s")
_LENGTH = struct.Struct("<Q")
_END = struct.Struct("<8sQ16s")
_LARGEST_HEADER = 1 << 28
LARGEST_PLAIN = 1 << 28
"""The largest number of plain bytes (bytes that belong to no tensor): they are held in memory."""
_LONGEST_NAME = 255
_LONGEST_SHOWN = 300
_MOST_DIMENSIONS = 64
_PIECE = 1 << 22
_BY_NAME: Mapping[str, DType] = {
    dtype.name: dtype for dtype in dtypes.DTYPES if dtype.safetensors is not None
}
NO_BASE = bytes(16)
"""The digest of the old elements, for a tensor that the first model does not have."""


def is_delta(path: Path) -> bool:
    """Return whether `path` is a file with the first bytes of a delta. Raises OSError."""
    if not path.is_file():  # a pipe has no end
        return False
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_made_of(path: Path) -> str | None:
    """Return the text that identifies the inputs of the delta at `path`. Return None if there is no
    delta, or if its header does not have this text.
    """
    try:
        if not is_delta(path):
            return None
        with path.open("rb") as stream:
            stream.seek(len(MAGIC))
            (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            if length > _LARGEST_HEADER:
                return None
            found = json.loads(stream.read(length)).get("made_of")
    except (OSError, ValueError, AttributeError, RecursionError, struct.error):
        return None
    return found if isinstance(found, str) else None


def digest_of(data: Elements | bytearray) -> bytes:
    """Return the XXH3-128 of `data`, 16 bytes."""
    return xxhash.xxh3_128_digest(data)


@dataclass(frozen=True, slots=True)
class DeltaTensor:
    """A tensor of the second model. Its elements are in row-major order in `file`, from byte
    `offset`."""

    name: str
    role: str
    dtype: DType
    shape: tuple[int, ...]
    file: str
    offset: int

    @property
    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def end(self) -> int:
        """The offset in the file after the last byte."""
        return self.offset + self.numel * self.dtype.itemsize

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.numel // BLOCK_ELEMENTS)

    def block(self, number: int) -> tuple[int, int]:
        """Return the bytes of block `number` in the file, as (first byte, end)."""
        begin, size = number * BLOCK_ELEMENTS, self.dtype.itemsize
        end = min(self.numel, begin + BLOCK_ELEMENTS)
        return self.offset + begin * size, self.offset + end * size


@dataclass(frozen=True, slots=True)
class DeltaPlainFile:
    """A file of the second model, with its bytes that belong to no tensor.

    Attributes:
        parts: the ranges of these bytes in the file, as pairs (offset, length). The delta stores
            the bytes of all ranges one after another.
        digest: the digest of the file if the first model has an equal file of this name, else None.
            With a digest, the delta does not contain the bytes of the file.
    """

    name: str
    size: int
    parts: tuple[tuple[int, int], ...]
    digest: str | None = None


@dataclass(frozen=True)
class DeltaHeader:
    """The header of a delta: the files and tensors of the second model, and the paths of both
    models when the delta was made.

    `made_of` is the text that identifies the inputs of a delta that was made in parts.
    """

    files: tuple[DeltaPlainFile, ...]
    tensors: tuple[DeltaTensor, ...]
    a: str = ""
    b: str = ""
    made_by: str = field(default_factory=lambda: f"zerotools {zerotools.__version__}")
    made_of: str | None = None

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(tensor.end - tensor.offset for tensor in self.tensors)

    @property
    def plain_bytes(self) -> int:
        """The number of bytes that belong to no tensor."""
        return sum(length for file in self.files for _, length in file.parts)

    def to_bytes(self) -> bytes:
        """Return the bytes of the header for the file."""
        tree = {
            "version": VERSION,
            "block_elements": BLOCK_ELEMENTS,
            "made_by": self.made_by,
            **({} if self.made_of is None else {"made_of": self.made_of}),
            "a": self.a,
            "b": self.b,
            "files": [
                {
                    "name": each.name,
                    "size": each.size,
                    "parts": [list(part) for part in each.parts],
                    "same_digest": each.digest,
                }
                for each in self.files
            ],
            "tensors": [
                {
                    "name": each.name,
                    "role": each.role,
                    "dtype": each.dtype.name,
                    "shape": list(each.shape),
                    "file": each.file,
                    "offset": each.offset,
                }
                for each in self.tensors
            ],
        }
        return json.dumps(tree, separators=(",", ":")).encode()


def parse_header(data: bytes, where: Path) -> DeltaHeader:
    """Return the header in `data`. `where` is the delta, for messages.

    Raises BadFile if `data` is not a header, or if parts and tensors do not cover the files
    exactly. Raises Unsupported if it has another version.
    """
    try:
        tree = json.loads(data)
        version, block = tree["version"], tree["block_elements"]
        made_by = _shown(tree.get("made_by", "the program"), 60)
        if version != VERSION:
            raise Unsupported(
                f"{where} is a delta of version {version!r:.40}, but this zerotools reads version "
                f"{VERSION}; use {made_by}, which wrote it"
            )
        if block != BLOCK_ELEMENTS:
            raise Unsupported(
                f"{where} is a delta with blocks of {block!r:.40} elements, but this zerotools "
                f"reads blocks of {BLOCK_ELEMENTS}; use {made_by}, which wrote it"
            )
        files = tuple(
            DeltaPlainFile(
                _text(each["name"]),
                _count(each["size"]),
                tuple((_count(begin), _count(length)) for begin, length in each["parts"]),
                None if each["same_digest"] is None else _text(each["same_digest"]),
            )
            for each in tree["files"]
        )
        tensors = tuple(
            DeltaTensor(
                _text(each["name"]),
                _text(each["role"]),
                _BY_NAME[each["dtype"]],
                _shape(each["shape"]),
                _text(each["file"]),
                _count(each["offset"]),
            )
            for each in tree["tensors"]
        )
        made_of = tree.get("made_of")
        header = DeltaHeader(
            files,
            tensors,
            _shown(tree["a"]),
            _shown(tree["b"]),
            made_by,
            None if made_of is None else _text(made_of),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"{where} is not a delta: its header is damaged ({error!s:.100})") from None
    _check_cover(header, where)
    return header


def _shown(value: Any, most: int = _LONGEST_SHOWN) -> str:
    """Return a text of the header for messages: on one line, and not too long."""
    text = "".join(each if each.isprintable() else " " for each in str(value)[: most + 1])
    return text if len(text) <= most else text[:most] + "..."


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        raise ValueError(f"{value!r:.40} is not a shape")
    return tuple(map(_count, value))


def _is_file_name(name: str) -> bool:
    try:
        parts = os.fsencode(name).split(b"/")
    except UnicodeEncodeError:
        return False
    return stays_below_root(name) and max(map(len, parts)) <= _LONGEST_NAME


def _check_cover(header: DeltaHeader, where: Path) -> None:
    """Raise BadFile unless parts and tensors fill each file exactly."""
    known: dict[str, list[tuple[int, int]]] = {}
    for file in header.files:
        if not _is_file_name(file.name) or file.name in known:
            raise BadFile(
                f"{where} names {file.name!r:.80}, which is not a file of a model; make the delta "
                "again"
            )
        whole = [(0, file.size)] if file.digest is not None else []
        known[file.name] = whole + [(begin, begin + length) for begin, length in file.parts]
    folders = {str(each) for name in known for each in PurePosixPath(name).parents}
    if inside := sorted(folders & known.keys()):
        raise BadFile(
            f"{where} has {inside[0]!r:.80} as a file and as a directory; make the delta again"
        )
    if header.plain_bytes > LARGEST_PLAIN:
        raise BadFile(
            f"{where} has {header.plain_bytes} bytes outside of tensors, but zerotools reads at "
            f"most {LARGEST_PLAIN}; make the delta again"
        )
    if len({tensor.name for tensor in header.tensors}) != len(header.tensors):
        raise BadFile(f"{where} names a tensor twice; make the delta again")
    for tensor in header.tensors:
        if tensor.file not in known:
            raise BadFile(
                f"{where}: {tensor.name} lies in {tensor.file!r:.80}, which is not in the delta's "
                "list of files; make the delta again"
            )
        known[tensor.file].append((tensor.offset, tensor.end))
    for file in header.files:
        at = 0
        for begin, end in sorted(known[file.name]):
            if begin != at:
                raise BadFile(
                    f"{where}: byte {min(begin, at)} of {file.name} is missing, or is there twice; "
                    "make the delta again"
                )
            at = end
        if at != file.size:
            raise BadFile(
                f"{where}: {file.name} has {file.size} bytes, but its parts end at byte {at}; make "
                "the delta again"
            )


class BlockWriter:
    """Writes blocks to `stream`, in one pass. `nbytes` and `blocks` count the written bytes and
    blocks, and `digest` is that of the bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = xxhash.xxh3_128()
        self.nbytes = 0
        self.blocks = 0

    def block(self, block: EncodedBlock, before: bytes, after: bytes) -> None:
        """Write one block, with the digests of its elements before and after the change."""
        lengths = block.changed, len(block.positions), len(block.values)
        self.write(_HEAD.pack(block.kind, *lengths, before, after))
        self.write(block.positions)
        self.write(block.values)
        self.blocks += 1

    def write(self, data: bytes) -> None:
        """Write bytes unchanged, such as the blocks that another run has encoded."""
        self.digest.update(data)
        self._stream.write(data)
        self.nbytes += len(data)

    def end(self) -> None:
        """Write the end of the file: the number of blocks and the digest."""
        self.write(END + _LENGTH.pack(self.blocks))
        self._stream.write(self.digest.digest())
        self.nbytes += 16
        self._stream.flush()


class DeltaWriter(BlockWriter):
    """Writes a delta to `stream`, in one pass."""

    def __init__(self, stream: BinaryIO, header: DeltaHeader, plain: bytes) -> None:
        """Write the header, and the compressed plain bytes `plain`."""
        super().__init__(stream)
        head = header.to_bytes()
        for part in (MAGIC, _LENGTH.pack(len(head)), head, _LENGTH.pack(len(plain)), plain):
            self.write(part)


class StoredBlock(NamedTuple):
    """A block of the file, and the digests of its elements before and after the change."""

    block: EncodedBlock
    before: bytes
    after: bytes


class DeltaFile:
    """A delta that was read and checked. `path` is its name in messages. `stream` must be able to
    seek, and must be at its beginning.

    Attributes:
        header: the header.
        plain: the plain bytes (bytes of files that belong to no tensor), compressed with zstd.
        digest: the digest of the whole file.
        changed: the number of elements that the delta changes.
        tensors, files: the tensors and files of the header, keyed by name.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        """Check the whole file. Raises BadFile and Unsupported."""
        self.path = path
        self.digest = b""
        self.changed = 0
        self._stream = stream
        self._stamp = _stamp_of(stream)
        begin = stream.read(len(MAGIC) + _LENGTH.size)
        if begin[: len(MAGIC)] != MAGIC:
            what = "not a delta" if begin else "empty, so it is not a delta"
            raise BadFile(f"{path} is {what}; zerotools delta A B OUT makes one")
        size = stream.seek(0, io.SEEK_END)
        self._check_end(size)
        stream.seek(len(begin))
        self._limit = size - _END.size
        (length,) = _LENGTH.unpack(begin[len(MAGIC) :].ljust(8, b"\0"))
        self.header = parse_header(self._take(length, _LARGEST_HEADER), path)
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, _LENGTH.size))
        self.plain = self._take(length, LARGEST_PLAIN)
        self._blocks: dict[str, list[tuple[int, int]]] = {}
        for tensor in self.header.tensors:
            self._blocks[tensor.name] = [self._skip_block() for _ in range(tensor.blocks)]
        if stream.tell() != self._limit:
            raise BadFile(f"{path} has blocks that belong to no tensor; make it again")
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}
        self.files = {file.name: file for file in self.header.files}

    def _check_end(self, size: int) -> None:
        cut = f"{self.path} is truncated: its end is missing; copy it or make it again"
        if size < _END.size:
            raise BadFile(cut)
        self._stream.seek(size - _END.size)
        mark, _, digest = _END.unpack(self._stream.read(_END.size))
        self.digest = digest
        if mark != END:
            raise BadFile(cut)
        found, left = xxhash.xxh3_128(), size - 16
        self._stream.seek(0)
        while left and (part := self._stream.read(min(left, _PIECE))):
            found.update(part)
            left -= len(part)
        if found.digest() != digest:
            raise BadFile(
                f"{self.path} is damaged: its digest is {found.hexdigest()}, but {digest.hex()} "
                "was recorded; copy it or make it again"
            )

    def _take(self, length: int, most: int) -> bytes:
        at = self._stream.tell()
        if length > most or at + length > self._limit:
            raise BadFile(
                f"{self.path} has a part of {length} bytes at byte {at} that goes beyond its end; "
                "copy it or make it again"
            )
        return self._read(length)

    def _read(self, length: int) -> bytes:
        """Return the next `length` bytes. Raises BadFile."""
        try:
            data = self._stream.read(length)
        except OSError as error:
            raise BadFile(f"{self.path} cannot be read: {error.strerror}") from None
        if len(data) < length:
            raise BadFile(f"{self.path} was truncated while it was applied; copy it again")
        return data

    def _skip_block(self) -> tuple[int, int]:
        """Skip the next block. Return its position and its kind."""
        at = self._stream.tell()
        kind, changed, positions, values, _, _ = _HEAD.unpack(self._take(_HEAD.size, _HEAD.size))
        self.changed += changed
        if self._stream.tell() + positions + values > self._limit:
            raise BadFile(
                f"{self.path} has a block at byte {at} that goes beyond its end; copy it or make "
                "it again"
            )
        self._stream.seek(positions + values, io.SEEK_CUR)
        return at, kind

    def needs_base(self, name: str, number: int) -> bool:
        """Return whether block `number` of the tensor `name` is a change of old elements, and not
        the elements of a new tensor."""
        return self._blocks[name][number][1] != DeltaBlockKind.NEW

    def check_unchanged(self) -> None:
        """Raise BadFile if the file was written to since it was checked."""
        if self._stamp != _stamp_of(self._stream):
            raise BadFile(f"{self.path} changed while it was applied; run the command again")

    def block(self, name: str, number: int) -> StoredBlock:
        """Return block `number` of the tensor `name`. Raises BadFile."""
        self._stream.seek(self._blocks[name][number][0])
        head = self._read(_HEAD.size)
        kind, changed, positions, values, before, after = _HEAD.unpack(head)
        if kind not in [*DeltaBlockKind] or changed > BLOCK_ELEMENTS:
            raise BadFile(
                f"{self.path}: block {number} of {name} is of kind {kind}, which this zerotools "
                "does not know; use the version that made the delta"
            )
        found = self._read(positions), self._read(values)
        return StoredBlock(EncodedBlock(DeltaBlockKind(kind), changed, *found), before, after)


def _stamp_of(stream: BinaryIO) -> tuple[int, int] | None:
    """Return the size and the time of the last write of a file; None for a stream in memory."""
    try:
        status = os.fstat(stream.fileno())
    except io.UnsupportedOperation:
        return None
    return status.st_size, status.st_mtime_ns
