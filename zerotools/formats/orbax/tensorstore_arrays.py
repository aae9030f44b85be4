"""Read the arrays of an Orbax item through TensorStore: their shapes and chunks, and their
elements.

Each array is read as a virtual file: `params.w.zarr2` has the decoded chunks of the array
`params.w`, in the order of their indices. A chunk is decoded into a temporary file when it is first
used. So each chunk is decoded once, whatever the order of reads, and memory holds one chunk for
each thread. The temporary files have no names and vanish when the process ends.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
import tempfile
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunksOnDemand, Stamp, Tensor
from zerotools.core.dtypes import DType, dtype_named
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.orbax.file_names import DATABASE
from zerotools.io.files.open_source import LocalSource, OpenablePath, OpenSource, SourceStream
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.io.files.source_stamps import stamp_of

_FILE = re.compile(r"(?P<name>.+)\.zarr(?P<zarr>[23])", re.DOTALL)
_DRIVERS = {2: "zarr", 3: "zarr3"}
_METADATA = {2: ".zarray", 3: "zarr.json"}
_INDEX = re.compile(r"c|(c/)?\d+([./]\d+)*")
_NOISE = re.compile(r"\s*\[(tensorstore_spec|source locations)=.*", re.DOTALL)
_OTHER_VERSION = re.compile(
    r"(?:supported version is \d+ but received|\"zarr_format\": Expected integer in the range "
    r"\[\d+, \d+\], but received): (\d+)"
)
_EMPTY = re.compile(r"Truncated Zstd-compressed stream; at byte 0\b")
_LONGEST_REASON = 160
_MOST_CHUNK_BYTES = 2**34
_MOST_CHUNKS = 2**22
_CACHE_BYTES = 64 * 2**20
_LOCKS = 8


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array as zarr's metadata describes it; `chunk` is the shape of a chunk.

    `missing` are the indices of chunks that were not written.
    """

    dtype: DType
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    missing: frozenset[tuple[int, ...]] = frozenset()

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks in each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def slot_bytes(self) -> int:
        """The number of bytes of a full chunk. In the decoded file, every chunk takes this many
        bytes."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def file_bytes(self) -> int:
        return math.prod(self.grid) * self.slot_bytes

    def box(self, number: int) -> Box:
        """Return the box of chunk number `number` in the decoded file."""
        index = []
        for count in reversed(self.grid):
            number, at = divmod(number, count)
            index.append(at)
        return self._box(tuple(reversed(index)))

    def _box(self, index: Iterable[int]) -> Box:
        start = tuple(at * c for at, c in zip(index, self.chunk, strict=True))
        ends = zip(start, self.chunk, self.shape, strict=True)
        return Box(start, tuple(min(c, n - at) for at, c, n in ends))

    def tensor(self, file: str) -> Tensor:
        """Return the tensor of the array, with its chunks in the decoded `file`."""

        def chunks() -> list[Chunk]:
            indices = enumerate(product(*map(range, self.grid)))
            return [
                Chunk(self._box(index), file, number * self.slot_bytes)
                for number, index in indices
                if index not in self.missing
            ]

        return Tensor(self.dtype, self.shape, ChunksOnDemand(chunks))


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
        size = _array_at(self, stamp_of(found)).file_bytes
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
        if not self._is_array:
            return LocalSource(os.open(self, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        return DecodedChunks(self)


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


def _described_by(path: Path) -> Path:
    """Return the file that provides the file status (`stat`) of a decoded array: the OCDBT database
    or the array's metadata file."""
    database = Path(path.parent, DATABASE)
    if database.is_file():
        return database
    name, zarr = _parts(path)
    return Path(path.parent, name, _METADATA[zarr])


@lru_cache(maxsize=2**14)
def _array_at(path: Path, _stamp: Stamp) -> StoredArray:
    name, zarr = _parts(path)
    return ArrayStore(path.parent, zarr).array(name)


class DecodedChunks:
    """The decoded chunks of an array, open for reading. Several threads may read at the same
    time."""

    def __init__(self, path: ArrayPath) -> None:
        self._path = path
        self._status = path.stat()
        name, zarr = _parts(path)
        self._store = ArrayStore(path.parent, zarr).open(name)
        self._array = _array_of(self._store, path.parent, name)
        self._spool = tempfile.TemporaryFile(prefix="zerotools-")  # noqa: SIM115
        self._locks = [Lock() for _ in range(_LOCKS)]
        self._decoded: set[int] = set()

    def status(self) -> os.stat_result:
        return self._status

    def read(self, count: int, offset: int) -> bytes:
        count = max(0, min(count, self._array.file_bytes - offset))
        self._decode(offset, count)
        return os.pread(self._spool.fileno(), count, offset)

    def read_into(self, view: memoryview, offset: int) -> int:
        count = max(0, min(len(view), self._array.file_bytes - offset))
        self._decode(offset, count)
        return os.preadv(self._spool.fileno(), [view[:count]], offset)

    def stream(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(SourceStream(self)))

    def close(self) -> None:
        self._spool.close()

    def _decode(self, offset: int, count: int) -> None:
        """Decode the chunks that contain the `count` bytes from `offset` on, if they are not
        decoded yet."""
        if not count:
            return
        slot = self._array.slot_bytes
        for number in range(offset // slot, (offset + count - 1) // slot + 1):
            if number in self._decoded:
                continue
            with self._locks[number % _LOCKS]:
                if number not in self._decoded:
                    self._write(number)
                    self._decoded.add(number)

    def _write(self, number: int) -> None:
        box = self._array.box(number)
        ranges = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
        with named_errors(self._path.parent, _parts(self._path)[0], "read"):
            elements = self._store[ranges].read().result()
        left, offset = memoryview(elements.reshape(-1).view("u1")), number * self._array.slot_bytes
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


@dataclass(frozen=True)
class ArrayStore:
    """The arrays in the item at `directory`, which are zarr of version `zarr`."""

    directory: Path
    zarr: int

    def open(self, name: str) -> Any:
        """Return TensorStore's object for the array `name`. Raise the errors of `named_errors`."""
        opening = self.begin_open(name)
        with named_errors(self.directory, name, "opened"):
            return opening.result()

    def begin_open(self, name: str) -> Any:
        """Begin to open the array `name`, and return TensorStore's future, so that many arrays can
        be opened at once. Raise the errors of `named_errors`.
        """
        spec = {
            "driver": _DRIVERS[self.zarr],
            "kvstore": {**self._files(), "path": f"{name}/"},
            "open": True,
        }
        if not self._is_database:
            spec["kvstore"] = {"driver": "file", "path": f"{self._place}/{name}/"}
        with named_errors(self.directory, name, "opened"):
            return tensorstore().open(spec, context=_context())

    def array(self, name: str, opening: Any = None) -> StoredArray:
        """Return the array `name`; `opening` is the result of `begin_open`, if it was called.

        Raises:
            BadFile: the array's metadata is missing or damaged.
            Unsupported: the array has a dtype that zerotools does not know.
        """
        opening = opening or self.begin_open(name)
        with named_errors(self.directory, name, "opened"):
            store = opening.result()
        return _array_of(store, self.directory, name)

    def chunk_indices(self, names: Container[str]) -> dict[str, set[tuple[int, ...]]]:
        """Return the indices of the chunks that are stored for each array of `names`, keyed by the
        array's name.

        Raises:
            BadFile: a part of the list of chunks is lost.
        """
        with named_errors(self.directory, "", "listed"):
            keys = tensorstore().KvStore.open(self._files(), context=_context()).result().list()
            listed = [key.decode("utf-8", "surrogateescape") for key in keys.result()]
        found: dict[str, set[tuple[int, ...]]] = {}
        for key in listed:
            for slash in re.finditer("/", key):
                name, index = key[: slash.start()], key[slash.end() :]
                if name in names and _INDEX.fullmatch(index):
                    found.setdefault(name, set()).add(tuple(map(int, re.findall(r"\d+", index))))
        return found

    @property
    def _place(self) -> str:
        return os.fspath(self.directory.absolute())

    @property
    def _is_database(self) -> bool:
        return Path(self.directory, DATABASE).is_file()

    def _files(self) -> dict[str, Any]:
        files = {"driver": "file", "path": f"{self._place}/"}
        return {"driver": "ocdbt", "base": files} if self._is_database else files


def tensorstore() -> Any:
    """Return the module of TensorStore.

    Raises:
        BadRequest: TensorStore is not installed.
    """
    try:
        return import_module("tensorstore")
    except ImportError:
        raise package_not_installed("reading an Orbax checkpoint", "tensorstore") from None


@lru_cache(maxsize=1)
def _context() -> Any:
    return tensorstore().Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


@contextmanager
def named_errors(directory: Path, name: str, what: str) -> Iterator[None]:
    """Convert an error of TensorStore to an error that names the array, with the last part of
    TensorStore's reason.

    Raises:
        BadFile: the array `name` in `directory` cannot be opened or read.
        Unsupported: its metadata or its database has another version.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        text = _NOISE.sub("", str(error)).strip().rstrip(".")
        array = f": the array {name}" if name else ": its database"
        if (version := _OTHER_VERSION.search(text)) is not None:
            raise Unsupported(
                f"{directory}{array} cannot be {what}: it was written in version {version[1]} of "
                "its format, which the installed tensorstore does not read; install a newer one, "
                "or save the checkpoint again with an older Orbax"
            ) from None
        if _EMPTY.search(text):
            raise BadFile(
                f"{directory}{array} cannot be {what}: a file of it is missing or empty; copy or "
                "download it again"
            ) from None
        raise BadFile(
            f"{directory}{array} cannot be {what} ({_reason(text)}): the file is damaged; copy or "
            "download it again"
        ) from None


def _reason(text: str) -> str:
    """Return the last cause in a message of TensorStore, without the places in files that follow
    it."""
    causes = text.partition("; at byte")[0].split(": ")
    return next((cause for cause in reversed(causes) if " " in cause), text)[-_LONGEST_REASON:]


def _array_of(store: Any, directory: Path, name: str) -> StoredArray:
    try:
        dtype = dtype_named(store.dtype.name)
    except Unsupported as error:
        raise Unsupported(f"{directory}: the array {name}: {error}") from None
    chunk = tuple(store.chunk_layout.write_chunk.shape or ())
    found = StoredArray(dtype, tuple(store.shape), chunk)
    if len(chunk) != len(found.shape) or 0 in chunk:
        raise Unsupported(
            f"{directory}: the array {name} of shape {found.shape} has chunks of shape {chunk}, "
            "which zerotools does not read"
        )
    count = math.prod(found.grid)
    if count > _MOST_CHUNKS:
        raise BadFile(
            f"{directory}: the array {name} of shape {found.shape} has {count} chunks, but "
            f"zerotools reads at most {_MOST_CHUNKS}; copy or download it again"
        )
    if found.slot_bytes > _MOST_CHUNK_BYTES:
        raise Unsupported(
            f"{directory}: a chunk of the array {name} has {found.slot_bytes} bytes, but "
            f"zerotools decodes chunks of at most {_MOST_CHUNK_BYTES} bytes; save the array in "
            "smaller chunks"
        )
    return found
