"""Decode the arrays of an Orbax item by TensorStore: their shapes and chunks, and their elements.

TensorStore gets the stored bytes of an array in memory, and reads no files. So it decodes arrays
that are in an object store, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunksOnDemand, Tensor
from zerotools.core.dtypes import DType, dtype_named
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.optional_packages import package_not_installed

Stored = bytes | bytearray
METADATA = {2: ".zarray", 3: "zarr.json"}
"""The name of the description of an array, by the version of zarr."""
_DRIVERS = {2: "zarr", 3: "zarr3"}
_NOISE = re.compile(r"\s*\[(tensorstore_spec|source locations)=.*", re.DOTALL)
_OTHER_VERSION = re.compile(
    r"\"zarr_format\": Expected integer in the range \[\d+, \d+\], but received: (\d+)"
)
_EMPTY = re.compile(r"Truncated Zstd-compressed stream; at byte 0\b")
_LONGEST_REASON = 160
_MOST_CHUNK_BYTES = 2**34
_MOST_CHUNKS = 2**22


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

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Return the indices of all chunks, in the order of the decoded file."""
        return product(*map(range, self.grid))

    def index(self, number: int) -> tuple[int, ...]:
        """Return the index of chunk number `number` in the decoded file."""
        index = []
        for count in reversed(self.grid):
            number, at = divmod(number, count)
            index.append(at)
        return tuple(reversed(index))

    def box(self, index: Iterable[int]) -> Box:
        """Return the box of the chunk with the index `index`."""
        start = tuple(at * c for at, c in zip(index, self.chunk, strict=True))
        ends = zip(start, self.chunk, self.shape, strict=True)
        return Box(start, tuple(min(c, n - at) for at, c, n in ends))

    def tensor(self, file: str) -> Tensor:
        """Return the tensor of the array, with its chunks in the decoded `file`."""

        def chunks() -> list[Chunk]:
            return [
                Chunk(self.box(index), file, number * self.slot_bytes)
                for number, index in enumerate(self.indices())
                if index not in self.missing
            ]

        return Tensor(self.dtype, self.shape, ChunksOnDemand(chunks))


class ArrayDecoder:
    """Decodes the chunks of the array `name` in the item at `directory`. Several threads may use
    it.

    `metadata` is the content of the array's description, which is zarr of version `zarr`.

    Raises:
        BadFile: the description is damaged.
        BadRequest: TensorStore is not installed.
        Unsupported: the array has a dtype or chunks that zerotools does not read.
    """

    def __init__(self, directory: Path, name: str, zarr: int, metadata: bytes) -> None:
        tensorstore = _tensorstore()
        context, memory = tensorstore.Context(), {"driver": "memory"}
        spec = {"driver": _DRIVERS[zarr], "kvstore": memory, "open": True}
        self._place = directory, name
        with named_errors(directory, name, "opened"):
            self._values = tensorstore.KvStore.open(memory, context=context).result()
            self._values[METADATA[zarr]] = metadata
            self._store = tensorstore.open(spec, context=context).result()
        self.array = _array_of(self._store, directory, name)
        self._start, self._separator = _key_encoding(json.loads(metadata), zarr)

    def key(self, index: Iterable[int]) -> str:
        """Return the key of a chunk, relative to the array."""
        return self._separator.join((*self._start, *map(str, index))) or "0"

    def put(self, number: int, stored: Stored | None) -> None:
        """Give the bytes of chunk number `number` of the decoded file to TensorStore, which copies
        them. `stored` is None if the chunk was not written.
        """
        if stored is not None:
            self._values[self.key(self.array.index(number))] = stored

    def decode(self, number: int) -> memoryview:
        """Return the elements of a chunk after `put`, row-major, and drop its bytes. Raise the
        errors of `named_errors`.
        """
        index = self.array.index(number)
        box = self.array.box(index)
        ranges = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
        try:
            with named_errors(*self._place, "read"):
                elements = self._store[ranges].read().result()
        finally:
            del self._values[self.key(index)]
        return memoryview(elements.reshape(-1).view("u1"))


def _key_encoding(metadata: Any, zarr: int) -> tuple[tuple[str, ...], str]:
    """Return the first parts of every chunk's key, and the separator of parts."""
    if zarr == 2:
        return (), metadata.get("dimension_separator") or "."
    encoding = metadata["chunk_key_encoding"]
    kind = encoding if isinstance(encoding, str) else encoding["name"]
    options = {} if isinstance(encoding, str) else encoding.get("configuration", {})
    if kind == "v2":
        return (), options.get("separator", ".")
    return ("c",), options.get("separator", "/")


def _tensorstore() -> Any:
    try:
        return import_module("tensorstore")
    except ImportError:
        raise package_not_installed("reading an Orbax checkpoint", "tensorstore") from None


@contextmanager
def named_errors(directory: Path, name: str, what: str) -> Iterator[None]:
    """Convert an error of TensorStore to an error that names the array, with the last part of
    TensorStore's reason.

    Raises:
        BadFile: the array `name` in `directory` cannot be opened or read.
        Unsupported: its metadata has another version.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        text = _NOISE.sub("", str(error)).strip().rstrip(".")
        array = f": the array {name}"
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
    """Return the last cause in a message of TensorStore, without the source positions after it."""
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
