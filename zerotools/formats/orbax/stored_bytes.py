"""The stored bytes of an item's arrays, by key.

The key of a chunk is `params.w/0.1`, and that of a description is `params.w/.zarray`. With OCDBT,
the values are in a database (`ocdbt`). Without it, each value is a file of this name.

An item may be on a disk or in an object store. All its files get a stamp before the first value is
read, and a file that has changed since then is refused.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from zerotools.core.errors import BadFile
from zerotools.formats.orbax.file_names import DATABASE, TREE
from zerotools.formats.orbax.ocdbt import Value, find_values
from zerotools.formats.orbax.tensorstore_arrays import (
    METADATA,
    ArrayDecoder,
    Stored,
    StoredArray,
)
from zerotools.io.files.directory_entries import folders_below
from zerotools.io.files.metadata_memory_limit import bytes_on_disk, metadata_limit
from zerotools.io.files.open_files import NeededRange, OpenFiles
from zerotools.io.files.source_stamps import Sources, named_if_gone, stamp_of

_AT_ONCE = 16 * 2**20
"""Values are read in groups of at most this many bytes, or of one value."""
_MOST_DESCRIPTION_BYTES = 2**20
_KNOWN = 4
"""The indexes of at most this many items are kept in memory."""


class ItemValues:
    """The stored values of the item in `directory`, by key. Several threads may read them.

    `files` has the status of every file of the item, keyed by relative name. `stamp` identifies the
    file `signed_by`, which changes whenever the item is saved again. `is_complete` is False if a
    part of the database's index was lost, and lost bytes are tolerated.

    Raises:
        FileNotFoundError: the item does not exist any more.
        BadFile: the database is damaged, or has changed.
        Unsupported: the database is in a newer version of its format.
        BadRequest: zstandard is needed but not installed.
    """

    def __init__(self, directory: Path, files: Mapping[str, os.stat_result]) -> None:
        self.directory = directory
        self.root = root = directory.absolute()
        self._sources = Sources({root / name: stamp_of(each) for name, each in files.items()})
        self._has_database, self.is_complete = DATABASE in files, True
        self.signed_by = DATABASE if self._has_database else TREE
        if self.signed_by not in files:
            raise FileNotFoundError(2, os.strerror(2), str(root / self.signed_by))
        self.stamp = stamp_of(files[self.signed_by])
        self._arrays: dict[tuple[str, int], StoredArray] = {}
        self._descriptions: dict[str, bytes] = {}
        if self._has_database:
            memory = metadata_limit(sum(map(bytes_on_disk, files.values())))
            with self._files() as opened:
                found = find_values(opened, directory, memory)
            self._values: Mapping[str, Value] = found
            self.is_complete = found.is_complete
        else:
            self._values = {
                name: NeededRange(name, 0, status.st_size) for name, status in files.items()
            }

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, Stored | None]]:
        """Yield each key with its value, or with None if there is no such value.

        Values of an object store are requested in parallel, at most 16 MiB of them at once. A value
        that was yielded is not kept here, because it may be large.

        Raises:
            BadFile: a file is missing, truncated, or has changed since it was first read.
        """
        for group, _ in self.groups(keys):
            found = {key: self._values.get(key) for key in group}
            ranges = {key: each for key, each in found.items() if isinstance(each, NeededRange)}
            with self._files() as files:
                data = dict(zip(ranges, files.read_ranges([*ranges.values()]), strict=True))
            for key, value in found.items():
                yield key, data.pop(key) if isinstance(value, NeededRange) else value

    def decoder(self, name: str, zarr: int) -> ArrayDecoder:
        """Return the decoder of the array `name`, which is zarr of version `zarr`.

        Raises:
            BadFile: the description of the array is missing or damaged.
            BadRequest, Unsupported: for the reasons of `ArrayDecoder`.
        """
        return next(self.decoders([name], zarr))

    def decoders(self, names: Sequence[str], zarr: int) -> Iterator[ArrayDecoder]:
        """Yield the decoder of each array. Raise the errors of `decoder`."""
        keys = {name: f"{name}/{METADATA[zarr]}" for name in names}
        self._read_descriptions([key for key in keys.values() if key not in self._descriptions])
        for name, key in keys.items():
            yield ArrayDecoder(self.directory, name, zarr, self._descriptions[key])

    def _read_descriptions(self, keys: Sequence[str]) -> None:
        """Read the descriptions of arrays, and keep them for the time when the arrays are
        opened.
        """
        for key in keys:
            value = self._values.get(key)
            if value is None:
                raise BadFile(
                    f"{self.directory} has no {key}, the description of an array that {TREE} "
                    "lists; copy or download it again"
                )
            if _length(value) > _MOST_DESCRIPTION_BYTES:
                raise BadFile(
                    f"{self.directory}: {key} has {_length(value)} bytes, but the description of "
                    f"an array has at most {_MOST_DESCRIPTION_BYTES}; copy or download it again"
                )
        for key, text in self.read(keys):
            assert text is not None
            self._descriptions[key] = bytes(text)

    def array(self, name: str, zarr: int) -> StoredArray:
        """Return the array `name`. Raise the errors of `decoder`."""
        if (name, zarr) not in self._arrays:
            self._arrays[name, zarr] = self.decoder(name, zarr).array
        return self._arrays[name, zarr]

    def groups(self, keys: Sequence[str]) -> Iterator[tuple[list[str], int]]:
        """Yield the groups of keys that `read` reads together, and the bytes of each group."""
        group: list[str] = []
        size = 0
        for key in keys:
            length = _length(self._values.get(key))
            if group and size + length > _AT_ONCE:
                yield group, size
                group, size = [], 0
            group.append(key)
            size += length
        if group:
            yield group, size

    def _files(self) -> OpenFiles:
        listing = "the OCDBT database" if self._has_database else "an earlier listing of the item"
        return OpenFiles(self.root, most=1, sources=self._sources, named_by=listing)


def _length(value: Value | None) -> int:
    if isinstance(value, NeededRange):
        return value.end - value.begin
    return len(value or b"")


def status_of_files(directory: Path) -> dict[str, os.stat_result]:
    """Return the status of every file of the item in `directory`, keyed by relative name.

    Hidden files directly in the directory are left out, because Orbax does not write them:
    zerotools keeps its journal there.
    """
    found = {}
    for folder, names in folders_below(directory):
        for path in (folder / name for name in sorted(names)):
            if path.is_file() and not (folder == directory and path.name.startswith(".")):
                with named_if_gone(path):
                    found[path.relative_to(directory).as_posix()] = path.stat()
    return found


_LOCK = Lock()
_ITEMS: OrderedDict[Path, ItemValues] = OrderedDict()


def keep_values(values: ItemValues) -> None:
    """Keep the values of an item for later calls of `values_of`."""
    with _LOCK:
        _ITEMS.pop(values.root, None)
        _ITEMS[values.root] = values
        while len(_ITEMS) > _KNOWN:
            _ITEMS.popitem(last=False)


def values_of(directory: Path) -> ItemValues:
    """Return the values of the item in `directory`, which are read again if the item was saved
    again. Raise the errors of `ItemValues`.
    """
    root = directory.absolute()
    with _LOCK:
        known = _ITEMS.get(root)
        if known is not None:
            _ITEMS.move_to_end(root)
    if known is None or known.stamp != stamp_of((root / known.signed_by).stat()):
        known = ItemValues(directory, status_of_files(directory))
        keep_values(known)
    return known
