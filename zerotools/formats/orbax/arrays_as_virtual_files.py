"""Read each array of an Orbax item like a file of its elements.

`params.w.zarr2` is a virtual file with the decoded chunks of the array `params.w`, in the order of
their indices. A chunk is decoded into a temporary file when it is first used. So each chunk is
decoded once, whatever the order of reads. All chunks that are being decoded take at most 2 GiB of
memory together, or are one larger chunk. The temporary files have no names and vanish when the
process ends.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Condition, Lock
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.orbax.file_names import DATABASE
from zerotools.formats.orbax.stored_bytes import values_of
from zerotools.formats.orbax.tensorstore_arrays import METADATA
from zerotools.io.files.open_source import LocalSource, OpenablePath, OpenSource, SourceStream
from zerotools.io.stores.store_path import StorePath

_FILE = re.compile(r"(?P<name>.+)\.zarr(?P<zarr>[23])", re.DOTALL)
_AHEAD = 8
"""At most this many threads decode chunks that a later read needs."""


class ArrayPath(OpenablePath):
    """A path in the directory of an item. `NAME.zarr2` and `NAME.zarr3` stand for the decoded
    chunks of the array NAME; only `open_source` can open such a file. Every other path is an
    ordinary path.
    """

    @property
    def _is_array(self) -> bool:
        return _FILE.fullmatch(self.name) is not None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if not self._is_array:
            return super().stat(follow_symlinks=follow_symlinks)
        found = _described_by(self).stat()
        name, zarr = _parts(self)
        size = values_of(_directory(self)).array(name, zarr).file_bytes
        plain = (stat.S_IFREG | 0o444, found.st_ino, found.st_dev, 1, 0, 0, size)
        times = (int(found.st_mtime),) * 3
        return os.stat_result((*plain, *times), {"st_mtime_ns": found.st_mtime_ns, "st_blocks": 0})

    def is_file(self, **options: Any) -> bool:
        return self._exists() if self._is_array else super().is_file(**options)

    def exists(self, **options: Any) -> bool:
        return self._exists() if self._is_array else super().exists(**options)

    def _exists(self) -> bool:
        try:
            self.stat()
        except (OSError, BadFile, Unsupported):
            return False
        return True

    def open(self, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not self._is_array:
            return super().open(mode, *args, **options)
        return io.BufferedReader(_OwnedStream(self.open_source()))

    def open_source(self) -> OpenSource:
        if self._is_array:
            return DecodedChunks(self)
        return LocalSource(os.open(self, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


class FarArrayPath(ArrayPath, StorePath):
    """An `ArrayPath` in an object store."""

    def open_source(self) -> Any:
        return DecodedChunks(self) if self._is_array else StorePath.open_source(self)


def array_path(directory: Path) -> ArrayPath:
    """Return the directory of an item as a path in which `NAME.zarr2` stands for an array."""
    return FarArrayPath(directory) if isinstance(directory, StorePath) else ArrayPath(directory)


class _OwnedStream(SourceStream):
    """A stream that also closes its source when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def array_file(name: str, zarr: int) -> str:
    """Return the name of the file with the decoded chunks of the array `name`.

    The file appears directly in the item's directory, but names of arrays may contain slashes
    (Haiku's names do). So each slash is written as %2F, and each % as %25.
    """
    return f"{name.replace('%', '%25').replace('/', '%2F')}.zarr{zarr}"


def _parts(path: Path) -> tuple[str, int]:
    found = _FILE.fullmatch(path.name)
    assert found is not None, f"{path} is not the decoded form of an array"
    return unquote(found["name"]), int(found["zarr"])


def _directory(path: ArrayPath) -> Path:
    """Return the directory of the item as an ordinary path, in which a real array directory may
    have a name that ends with `.zarr2`.
    """
    return StorePath(path.parent) if isinstance(path, StorePath) else Path(path.parent)


def _described_by(path: ArrayPath) -> Path:
    """Return the file whose inode and times `stat` returns for the decoded array `path`: the OCDBT
    database, or the metadata of the array if there is no database.
    """
    directory = _directory(path)
    if (database := directory / DATABASE).is_file():
        return database
    name, zarr = _parts(path)
    return directory / name / METADATA[zarr]


class DecodedChunks:
    """The decoded chunks of an array, open for reading. Several threads may read at the same
    time."""

    def __init__(self, path: ArrayPath) -> None:
        self._path = path
        self._status = path.stat()
        self._name, zarr = _parts(path)
        self._values = values_of(_directory(path))
        self._decoder = self._values.decoder(self._name, zarr)
        self._array = self._decoder.array
        self._spool = tempfile.TemporaryFile(prefix="zerotools-")  # noqa: SIM115
        self._lock = Lock()
        self._decoded: set[int] = set()
        self._decoding: dict[int, Future[None]] = {}

    def status(self) -> os.stat_result:
        return self._status

    def read(self, count: int, offset: int) -> bytes:
        count = max(0, min(count, self._array.file_bytes - offset))
        self._decode([(offset, offset + count)])
        return os.pread(self._spool.fileno(), count, offset)

    def read_into(self, view: memoryview, offset: int) -> int:
        count = max(0, min(len(view), self._array.file_bytes - offset))
        self._decode([(offset, offset + count)])
        return os.preadv(self._spool.fileno(), [view[:count]], offset)

    def fetch(
        self, ranges: Sequence[tuple[int, int]]
    ) -> Callable[[], Sequence[Sequence[memoryview]]]:
        """Begin to decode the chunks in the `ranges`, each [begin, end), and return a function that
        waits for the bytes, as `FarSource.fetch` does.
        """
        decoding = _decoders().submit(self._decode, ranges)

        def wait() -> Sequence[Sequence[memoryview]]:
            decoding.result()
            return [[memoryview(self.read(end - begin, begin))] for begin, end in ranges]

        return wait

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Decode the chunks that contain the `ranges`, each [begin, end)."""
        self._decode(ranges)

    def stream(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(SourceStream(self)))

    def close(self) -> None:
        self._spool.close()

    def _decode(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Decode the chunks that contain the `ranges`, or wait for another thread that decodes
        them.
        """
        slot = self._array.slot_bytes
        numbers = {
            number
            for begin, end in ranges
            if begin < end
            for number in range(begin // slot, (end - 1) // slot + 1)
        }
        if not (numbers := numbers - self._decoded):
            return
        with self._lock:
            numbers -= self._decoded
            own = {number: Future[None]() for number in numbers - self._decoding.keys()}
            awaited = [self._decoding[number] for number in numbers - own.keys()]
            self._decoding |= own
        try:
            self._write_chunks(own)
        except BaseException as error:
            with self._lock:
                for number in own.keys() & self._decoding.keys():  # a later read tries again
                    self._decoding.pop(number).set_exception(error)
            raise
        for future in awaited:
            future.result()

    def _write_chunks(self, numbers: Iterable[int]) -> None:
        keys = {self._key(number): number for number in sorted(numbers)}
        for group, size in self._values.groups([*keys]):
            with _MEMORY.taken(size + 2 * self._array.slot_bytes):  # TensorStore decodes and copies
                for key, stored in self._values.read(group):
                    self._decoder.put(keys[key], stored)
                    del stored  # TensorStore has a copy
                    self._write(keys[key], self._decoder.decode(keys[key]))
                    with self._lock:
                        self._decoded.add(keys[key])
                        self._decoding.pop(keys[key]).set_result(None)

    def _key(self, number: int) -> str:
        return f"{self._name}/{self._decoder.key(self._array.index(number))}"

    def _write(self, number: int, left: memoryview) -> None:
        offset = number * self._array.slot_bytes
        try:
            os.ftruncate(self._spool.fileno(), self._array.file_bytes)
            while left:
                done = os.pwrite(self._spool.fileno(), left, offset)
                left, offset = left[done:], offset + done
        except OSError as error:
            raise BadRequest(
                f"the decoded elements of {self._path} ({self._array.file_bytes} bytes) cannot be "
                f"written to {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a directory "
                "with more space"
            ) from error


class _DecodingMemory:
    """The memory of the chunks that are being decoded. A thread waits until the memory has space
    for its chunk, or until no other chunk is being decoded.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._changed = Condition()

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Take `count` bytes until the context ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + count <= self._most)
            self._used += count
        try:
            yield
        finally:
            with self._changed:
                self._used -= count
                self._changed.notify_all()


_MEMORY = _DecodingMemory(2**31)


@cache
def _decoders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AHEAD, thread_name_prefix="decode")
