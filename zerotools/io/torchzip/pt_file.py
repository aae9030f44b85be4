"""One `.pt` file in either format of torch.save: its tree, and the positions of its tensors'
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes
from zerotools.io.files.metadata_memory_limit import data_in, may_be_read
from zerotools.io.files.open_source import FarSource, LocalSource, OpenSource
from zerotools.io.files.regular_files import open_source, source_file
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.pickle_machine import TruncatedPickle
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor, walk_values
from zerotools.io.torchzip.unpickle import LARGEST_PICKLE, loads_from
from zerotools.io.torchzip.zip_directory import LOCAL_HEADER, ZipEntry, check_entry

_SMALL = 4096


@dataclass
class TorchFile:
    """A torch.save file. `name` is relative to the root of the checkpoint, and `tree` is the saved
    tree.
    """

    root: Path
    name: str
    size: int
    tree: Any
    records: dict[str, ZipEntry]
    _offsets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path, name: str, *, alone: bool = False) -> TorchFile:
        """Read the pickle of the file `root / name`. No tensor data is read.

        If lost bytes are tolerated, a lost storage gets a position after the end of the file. The
        size of the pickle is limited in proportion to the data in all files of the directory; with
        `alone`, in proportion to the data in this file.

        Raises:
            BadFile: the file is missing, truncated, or not a torch file.
            Unsupported: the file is compressed, or has an unknown dtype.
        """
        path = root / name
        try:
            source = open_source(path)
        except OSError as error:
            raise BadFile(f"{path} cannot be opened: {error.strerror}") from error
        try:
            window = FileRange.whole(source, path)
            if is_legacy(window):
                legacy = read_legacy(window)
                return cls(root, name, window.length, legacy.tree, {}, dict(legacy.offsets))
            archive = Archive.open(window)
            _expect_headers(source, archive)
            tree = archive.tree(None if alone else lambda: data_in(path.parent))
            records = _sound(archive) if is_tolerated() else archive.records
            return cls(root, name, window.length, tree, records)
        finally:
            source.close()

    @staticmethod
    def check(path: Path) -> None:
        """Raise an error if the zip directory of a file shows damage. Use this for files that no
        other code reads.

        Raises:
            BadFile: the file is missing, truncated, or not a torch file.
            Unsupported: the file is compressed.
        """
        try:
            with source_file(path, is_source=False) as source:
                window = FileRange.whole(source, path)
                if not is_legacy(window):
                    Archive.open(window)
        except OSError as error:
            raise BadFile(f"{path} cannot be opened: {error.strerror}") from error

    @property
    def storages(self) -> tuple[str, ...]:
        """The keys of the storages with positions that are known already. In files from before
        torch 1.6 these are all storages.
        """
        return tuple(self._offsets)

    @property
    def path(self) -> Path:
        return self.root / self.name

    def payload(self, storage: Storage) -> int:
        """Return the byte offset of a storage in the file.

        Raises:
            BadFile: the file has no storage of this key and size.
        """
        record = self.records.get(f"data/{storage.key}")
        fits = record is None or record.length == storage.nbytes
        if storage.key not in self._offsets or not fits:
            source = open_source(self.path)
            try:
                archive = Archive(FileRange.whole(source, self.path), self.records)
                self._offsets[storage.key] = archive.payload(storage)
            except BadFile as error:
                raise_or_record(self.path, error)
                self._offsets[storage.key] = self.size
            finally:
                source.close()
        return self._offsets[storage.key]

    def tensor(self, stored: StoredTensor) -> Tensor:
        """Return the tensor `stored` as a `Tensor` with one chunk, which is in this file."""
        chunk = Chunk(Box.whole(stored.shape), self.name, self.first_byte(stored), stored.strides)
        return Tensor(stored.dtype, stored.shape, [chunk])

    def first_byte(self, stored: StoredTensor) -> int:
        """Return the byte offset of a tensor's first element; 0 if the tensor has no elements."""
        if 0 in stored.shape:
            return 0
        return self.payload(stored.storage) + stored.offset * stored.dtype.itemsize


def _expect_headers(source: OpenSource, archive: Archive) -> None:
    """Request the local headers of a file in an object store together. They have the positions of
    the storages, and are spread over the file.
    """
    if isinstance(source, LocalSource):
        return
    at, more = archive.window.offset, LOCAL_HEADER.size
    cast(FarSource, source).expect(
        [
            (at + each.header, at + each.header + more + len(each.name.encode()))
            for each in archive.records.values()
        ]
    )


def repacked_file(file: TorchFile, tree: Any) -> FilePlan:
    """Return the plan of a new file with the tree `tree` and the storages of `file`.

    Storages are copied byte by byte, with the CRC-32 of the zip, so that damage stays visible.
    Files from before torch 1.6 have no CRC-32, so it is computed when the new file is written.

    Raises:
        BadFile: a storage is not in the file.
        Unsupported: a value cannot be written to a pickle.
    """
    from zerotools.io.torchzip import lay_out_archive
    from zerotools.io.torchzip.pickle_writer import dumps_renumbered

    pickle, storages = dumps_renumbered(tree)
    records = [file.records.get(f"data/{storage.key}") for storage in storages]
    crcs = {n: each.crc for n, each in enumerate(records) if each is not None and each.has_crc}
    sizes = [storage.nbytes for storage in storages]
    # The folder in the archive has the name of the file, as in archives that torch writes.
    layout = lay_out_archive.lay_out(pickle, sizes, crcs, folder=PurePosixPath(file.name).stem)
    full = [(n, storage) for n, storage in enumerate(storages) if storage.nbytes]
    carried, checksums = [], []
    for (number, storage), at in zip(full, layout.payloads, strict=True):
        carried.append(CarriedBytes(at.offset, file.path, file.payload(storage), at.length))
        if number not in crcs:
            checksums.append(Checksum(at.offset, at.length, at.crc_at))
    literals = [LiteralBytes(at, data) for at, data in layout.literals]
    return FilePlan(layout.length, literals, carried, checksums)


def _sound(archive: Archive) -> dict[str, ZipEntry]:
    """Return the records of the archive, except damaged small records.

    Small records contain numbers that readers use, such as a step. The bytes of large records are
    checked when they are read.
    """
    kept = dict(archive.records)
    for name, record in archive.records.items():
        if record.length <= _SMALL:
            try:
                check_entry(archive.window, record)
            except BadFile as error:
                raise_or_record(archive.window.path, error)
                del kept[name]
    return kept


# Reads the torch.save format from before torch 1.6, which torch still writes if the zip format is
# switched off.
#
# A file is a sequence of pickles: a magic number, a protocol version, facts about the machine, the
# object (its tensors refer to storages by key), and the list of these keys. After the pickles, for
# each key in the order of this list, the file has the number of elements as a little-endian int64,
# and the bytes of the storage.
#
# Source: torch/serialization.py (`_legacy_save`, `_legacy_load`).

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_FIRST_READ = 2**20
_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
_FRAME = b"\x95"
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """The contents of a file in the old format: the saved tree, and the byte offset of each storage
    keyed by key.
    """

    tree: Any
    offsets: Mapping[str, int]


def is_legacy(window: FileRange) -> bool:
    """Return whether a file begins with the magic number of the old format, pickled with protocol 2
    or newer. From protocol 4 on, the number is inside a frame.
    """
    begin = window.read(0, min(window.length, 23))
    if begin[:1] != b"\x80" or begin[1:2] not in _PROTOCOLS:
        return False
    number = begin[11:] if begin[2:3] == _FRAME else begin[2:]
    return number[:2] == b"\x8a\x0a" and int.from_bytes(number[2:12], "little") == MAGIC


def read_legacy(window: FileRange) -> LegacyFile:
    """Read the pickles, and find the positions of the storages after them.

    Raises:
        BadFile: the file is damaged or truncated.
        Unsupported: the file was written on a big-endian machine, or has another protocol version.
    """
    size = min(window.length, _FIRST_READ)
    while True:
        try:
            tree, keys, end = _pickles(window, window.read(0, size))
            break
        except TruncatedPickle:
            if size == window.length or size >= LARGEST_PICKLE:
                raise
            size = min(window.length, 4 * size, LARGEST_PICKLE)
            if not may_be_read(size, window.other_data_size(size)):
                raise BadFile(
                    f"{window}: its pickles have more than {size} bytes, more than in any real "
                    "checkpoint: the file was made to fill the memory; do not use it"
                ) from None
    return LegacyFile(tree, _offsets(window, _storages(window, tree), keys, end))


def _storages(window: FileRange, tree: Any) -> dict[str, Storage]:
    """Return every storage that the tree refers to, also from inside objects of unknown classes.
    The dict is keyed by the storage's key.
    """
    found: dict[str, Storage] = {}
    for value in walk_values(tree):
        if isinstance(value, StoredTensor):
            value = value.storage
        if isinstance(value, Storage) and found.setdefault(value.key, value).nbytes != value.nbytes:
            raise BadFile(
                f"{window}: storage {value.key!r} has both {found[value.key].nbytes} and "
                f"{value.nbytes} bytes in its pickle; copy or download the file again"
            )
    return found


def _pickles(window: FileRange, data: bytes) -> tuple[Any, list[str], int]:
    data_size = window.other_data_size(len(data))
    _, at = loads_from(data, 0, source=window)
    protocol, at = loads_from(data, at, source=window)
    machine, at = loads_from(data, at, source=window)
    if protocol != PROTOCOL:
        raise Unsupported(
            f"{window} has torch.save protocol {protocol!r:.20}, but zerotools reads only "
            f"{PROTOCOL}; save it again with torch.save"
        )
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Unsupported(
            f"{window} was written on a big-endian machine; save it on a little-endian machine"
        )
    tree, at = loads_from(data, at, source=window, data_size=data_size)
    keys, at = loads_from(data, at, source=window, data_size=data_size)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadFile(f"{window}: its list of storages is damaged; copy or download the file again")
    return tree, keys, at


def _offsets(
    window: FileRange, storages: Mapping[str, Storage], keys: list[str], at: int
) -> dict[str, int]:
    """Return the byte offset of each storage, keyed by the storage's key. `at` is the offset of the
    first byte after the pickles.

    If lost bytes are tolerated, a storage after the end of a truncated file has the offset that
    it should have.
    """
    offsets = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise BadFile(
                f"{window}: storage {key!r} belongs to no tensor, so its size is unknown; copy or "
                "download the file again"
            )
        is_cut = at + _COUNT.size + storage.nbytes > window.length
        left = max(0, window.length - at)
        announced = window.read(at, _COUNT.size) if left >= _COUNT.size else None
        numel = storage.numel if announced is None else _COUNT.unpack(announced)[0]
        at += _COUNT.size
        if numel != storage.numel or is_cut:
            error = BadFile(
                f"{window}: storage {key!r} of {storage.numel} elements is truncated or damaged: "
                f"its header gives it {numel} elements, but {left} bytes are left in the file; "
                "copy or download the file again"
            )
            if not is_cut:
                raise error
            raise_or_record(window.path, error)
        offsets[key] = at
        at += storage.nbytes
    return offsets
