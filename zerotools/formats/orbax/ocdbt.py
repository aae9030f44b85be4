"""Find the values of an OCDBT database, which is a key-value store of TensorStore.

    manifest.ocdbt             the newest versions; each names the root of a B+tree
    d/4f32...                  nodes of the trees, and values
    ocdbt.process_0/d/4f32...  the same, written by process 0

A leaf of the tree maps keys to values. Small values are in the leaf itself, and all others are
ranges of the data files. Manifest and nodes have checksums (CRC-32C), which are verified here;
values have none.

The files are read by ranges through `OpenFiles`, so a database in an object store is read with the
settings, retries and checks of all other files. TensorStore is not used here.

Source: TensorStore's documentation of the driver `ocdbt`, and its code in
`tensorstore/kvstore/ocdbt/format`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.orbax.file_names import DATABASE
from zerotools.io.files.directory_entries import names_in, stays_below_root
from zerotools.io.files.open_files import NeededRange, OpenFiles
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record

Value = NeededRange | bytes
"""A value: the range of a file, or the bytes themselves."""

_MANIFEST, _NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
_NUMBERED = re.compile(r"manifest\.[0-9a-f]{16}")
_IS_NUMBERED = 1
_ZSTD = 1
_HEADER = 14
"""The least bytes of a header: magic number, length, version, and kind of compression."""
_CHECKSUM = 4
_ABSENT = 2**64 - 1
"""The offset and the length of the root of an empty tree."""
_COST = 400
"""The bytes of memory for one entry of a node, in addition to its key."""
_PIECE = 2**20
_POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, with its lowest power in the highest bit."""


class _Damaged(Exception):
    """A manifest or a node cannot be decoded; the argument is the reason, as a phrase."""


class _OtherVersion(Exception):
    """A manifest or a node has a version other than 0; the argument is this version."""


class _Node(NamedTuple):
    """A reference to a node of the tree.

    Attributes:
        at: the bytes of the node.
        height: 0 for a leaf.
        base: the beginning of the paths of all files to which the node refers.
        prefix: the beginning of all keys in the node.
    """

    at: NeededRange
    height: int
    base: str
    prefix: bytes


class _Memory:
    """The memory in bytes that the index of a database may still use."""

    def __init__(self, size: int) -> None:
        self.left = size

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _Damaged(
                "its index would take more memory than in any real checkpoint of this size"
            )


class _Body:
    """The decompressed content of a manifest or a node, which is read from its beginning."""

    def __init__(self, data: bytes, memory: _Memory) -> None:
        self._data = data
        self._at = 0
        self._memory = memory

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise _Damaged("it ends too early")
        data = self._data[self._at : end]
        self._at = end
        return data

    def rest(self) -> bytes:
        return self._data[self._at :]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        """Read a number in the encoding uleb128."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise _Damaged("it has a number of more than 64 bits")

    def count(self) -> int:
        """Read the number of entries of a node."""
        if not (count := self.number()):
            raise _Damaged("it has no entries")
        return count

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def texts(self, shared: Sequence[int], more: Sequence[int]) -> list[bytes]:
        """Read texts. Text i is the first `shared[i]` bytes of the previous text, followed by
        `more[i]` bytes that are read.
        """
        texts = [b""]
        for same, new in zip(shared, more, strict=True):
            if same > len(texts[-1]):
                raise _Damaged("a name continues a shorter one")
            self._memory.take(same + new + _COST)
            texts.append(texts[-1][:same] + self.take(new))
        return texts[1:]

    def files(self, base: str) -> list[tuple[str, str]]:
        """Read the table of data files. Return (path, prefix) of each file; all paths in a node in
        this file begin with the prefix.
        """
        count = self.number()
        shared = [0, *self.numbers(count - 1)] if count else []
        more, bases = self.numbers(count), self.numbers(count)
        found = []
        for path, length in zip(self.texts(shared, more), bases, strict=True):
            found.append((base + path.decode("ascii"), base + path[:length].decode("ascii")))
        return found


class FoundValues(dict[str, Value]):
    """The values of a database by key. If lost bytes are tolerated, the values under a damaged node
    are left out, and `is_complete` is False."""

    is_complete = True


def find_values(files: OpenFiles, root: Path, memory_bytes: int) -> FoundValues:
    """Return the values of the newest version of the database in the directory `root`.

    `files` are the files in `root`. The index may use `memory_bytes` bytes of memory.

    Raises:
        BadFile: the manifest or a node is missing or damaged, or the index would be too large.
        Unsupported: the database is in a newer version of its format.
        BadRequest: the database is compressed, and zstandard is not installed.
    """
    memory = _Memory(memory_bytes)
    found = FoundValues()
    level = list(_newest_root(files, root, memory))
    while level:
        below: list[_Node] = []
        with _named(root / DATABASE):
            memory.take(sum(each.at.end - each.at.begin for each in level))
        for node, data in _read_nodes(files, level):
            try:
                if isinstance(data, BadFile):
                    raise data
                inside = _decoded_node(data, node, root, memory)
            except BadFile as error:
                raise_or_record(root / node.at.file, error)
                found.is_complete = False
                continue
            if node.height:
                below += cast("list[_Node]", inside)
            else:
                found.update(cast("dict[str, Value]", inside))
        level = below
    return found


def _read_nodes(
    files: OpenFiles, level: Sequence[_Node]
) -> Iterator[tuple[_Node, bytearray | BadFile]]:
    """Yield each node with its bytes. If lost bytes are tolerated, the nodes are read one at a
    time, and a node that cannot be read has the error in place of its bytes."""
    if not is_tolerated():
        yield from zip(level, files.read_ranges([each.at for each in level]), strict=True)
        return
    for node in level:
        try:
            (data,) = files.read_ranges([node.at])
        except BadFile as error:
            yield node, error
        else:
            yield node, data


def _decoded_node(
    data: bytearray, node: _Node, root: Path, memory: _Memory
) -> list[_Node] | dict[str, Value]:
    """Return the children of an inner node, or the values in a leaf."""
    with _named(root / node.at.file, f" at byte {node.at.begin}, in a node of the database"):
        body = _open(bytes(data), _NODE, memory)
        if body.byte() != node.height:
            raise _Damaged("its height in the tree is not the one that its parent gives")
        return [*_children(body, node)] if node.height else dict(_leaf_values(body, node))


def _newest_root(files: OpenFiles, root: Path, memory: _Memory) -> Iterator[_Node]:
    """Yield the root of the newest version; nothing if this version has no keys."""
    name = DATABASE
    with _named(root / name):
        body, is_numbered = _open_manifest(files, name, memory)
    if is_numbered:
        numbered = sorted(filter(_NUMBERED.fullmatch, names_in(root)))
        if not numbered:
            raise BadFile(
                f"{root} lacks the numbered manifests to which {DATABASE} refers; copy or download "
                "it again"
            )
        name = numbered[-1]
        with _named(root / name):
            body, is_numbered = _open_manifest(files, name, memory)
    with _named(root / name):
        yield from _last_version(body)


def _open_manifest(files: OpenFiles, name: str, memory: _Memory) -> tuple[_Body, bool]:
    """Return the body of a manifest after its configuration, and whether the versions are in
    another, numbered manifest.
    """
    with files.source(name) as source:
        size = source.status().st_size
    memory.take(size)
    (data,) = files.read_ranges([NeededRange(name, 0, size)])
    body = _open(bytes(data), _MANIFEST, memory)
    body.take(16)  # an identifier
    kind = body.byte()
    body.numbers(2)  # the largest value in a leaf, and the largest node
    body.byte()  # the arity of the tree of older versions
    if body.number() == _ZSTD:
        body.take(4)  # its level
    return body, kind == _IS_NUMBERED


def _last_version(body: _Body) -> Iterator[_Node]:
    files = body.files("")
    count = body.number()
    body.numbers(count)  # numbers of the versions, ascending
    heights = body.take(count)
    ids, offsets, lengths = (body.numbers(count) for _ in range(3))
    if count and not offsets[-1] == lengths[-1] == _ABSENT:
        path, base = _file(files, ids[-1])
        at = NeededRange(path, offsets[-1], offsets[-1] + lengths[-1])
        yield _Node(at, heights[-1], base, b"")


def _children(body: _Body, node: _Node) -> Iterator[_Node]:
    files, count = body.files(node.base), body.count()
    shared, more = [0, *body.numbers(count - 1)], body.numbers(count)
    common = body.numbers(count)
    keys = body.texts(shared, more)
    ids, offsets, lengths = (body.numbers(count) for _ in range(3))
    for key, length, number, offset, size in zip(keys, common, ids, offsets, lengths, strict=True):
        path, base = _file(files, number)
        at = NeededRange(path, offset, offset + size)
        yield _Node(at, node.height - 1, base, node.prefix + key[:length])


def _leaf_values(body: _Body, node: _Node) -> Iterator[tuple[str, Value]]:
    files, count = body.files(node.base), body.count()
    shared, more = [0, *body.numbers(count - 1)], body.numbers(count)
    keys = [
        (node.prefix + key).decode("utf-8", "surrogateescape") for key in body.texts(shared, more)
    ]
    lengths, kinds = body.numbers(count), body.numbers(count)
    outside = [at for at, kind in enumerate(kinds) if kind]
    ids, offsets = body.numbers(len(outside)), body.numbers(len(outside))
    for at, number, offset in zip(outside, ids, offsets, strict=True):
        path, _ = _file(files, number)
        yield keys[at], NeededRange(path, offset, offset + lengths[at])
    for at, kind in enumerate(kinds):
        if not kind:
            yield keys[at], body.take(lengths[at])


def _file(files: Sequence[tuple[str, str]], number: int) -> tuple[str, str]:
    if number >= len(files):
        raise _Damaged(f"it refers to file {number} of {len(files)}")
    path, base = files[number]
    if not stays_below_root(path):
        raise _Damaged(f"it names the file {path!r:.200}, which is not below the database")
    return path, base


def _open(data: bytes, magic: bytes, memory: _Memory) -> _Body:
    """Check the header and the checksum of a manifest or a node, and return its content."""
    if len(data) < _HEADER + _CHECKSUM or data[: len(magic)] != magic:
        raise _Damaged("it does not begin like one")
    if (length := int.from_bytes(data[4:12], "little")) != len(data):
        raise _Damaged(f"it has {len(data)} bytes, but its header records {length}")
    body = _Body(data[12:-_CHECKSUM], memory)
    version, compression = body.numbers(2)
    if version:
        raise _OtherVersion(version)
    if _crc32c(data[:-_CHECKSUM]) != int.from_bytes(data[-_CHECKSUM:], "little"):
        raise _Damaged("its checksum is wrong")
    if compression > _ZSTD:
        raise _Damaged(f"it is compressed in an unknown way, {compression}")
    return _Body(_decompressed(body.rest(), memory), memory) if compression else body


def _decompressed(data: bytes, memory: _Memory) -> bytes:
    try:
        zstd = import_module("zstandard")
    except ImportError:
        raise package_not_installed("reading an Orbax checkpoint", "zstandard") from None
    pieces = []
    try:
        with zstd.ZstdDecompressor().stream_reader(data) as stream:
            while piece := stream.read(_PIECE):
                memory.take(len(piece))
                pieces.append(piece)
    except zstd.ZstdError as error:
        raise _Damaged(f"it cannot be decompressed: {error}") from None
    return b"".join(pieces)


def _crc_table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE = (*_crc_table(),)


def _crc32c(data: bytes) -> int:
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


@contextmanager
def _named(path: Path, place: str = "") -> Iterator[None]:
    """Convert the errors of decoding to errors that name the file `path`, and the `place` in it.

    Raises:
        BadFile, Unsupported: for the reasons of `find_values`.
    """
    try:
        yield
    except _OtherVersion as error:
        raise Unsupported(
            f"{path} cannot be read: it was written in version {error} of its format, which "
            "zerotools does not read; install a newer zerotools, or save the checkpoint again with "
            "an older Orbax"
        ) from None
    except (_Damaged, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is damaged{place}: {error}; copy or download it again") from None
