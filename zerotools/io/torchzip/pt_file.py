"""One `.pt` file in either format of torch.save: its tree, and the positions of its tensors'
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes
from zerotools.io.files.metadata_memory_limit import data_in
from zerotools.io.files.open_source import FarSource, LocalSource, OpenSource
from zerotools.io.files.regular_files import open_source, source_file
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record
from zerotools.io.torchzip import archive_layout
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.legacy_archive import is_legacy, read_legacy
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps_renumbered
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
    pickle, storages = dumps_renumbered(tree)
    records = [file.records.get(f"data/{storage.key}") for storage in storages]
    crcs = {n: each.crc for n, each in enumerate(records) if each is not None and each.has_crc}
    sizes = [storage.nbytes for storage in storages]
    # The folder in the archive has the name of the file, as in archives that torch writes.
    layout = archive_layout.lay_out(pickle, sizes, crcs, folder=PurePosixPath(file.name).stem)
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
