"""Reads text files and token files as one stream of tokens, without loading the stream into
memory.
"""

from __future__ import annotations

import bisect
import codecs
import glob
import itertools
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.number_file import NumberFile
from zerotools.jobs.datafiles.examples_and_documents import has_documents, read_documents
from zerotools.jobs.datafiles.json_objects import Seen, not_utf8
from zerotools.jobs.datafiles.record_files import saved_files
from zerotools.jobs.datafiles.token_files import TokenArray
from zerotools.jobs.jobfile_tables.data import DataSpec

PIECE_BYTES = 1 << 20
BYTES_VOCABULARY = 256


class Tokens(Protocol):
    """A sequence of token ids that is read by ranges."""

    @property
    def vocabulary(self) -> int:
        """A number that is larger than all ids of the sequence."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the ids of the tokens from index `start` to index `stop`, without `stop`."""


def find_files(patterns: Sequence[str], key: str = "data.text") -> list[Path]:
    """Return the files that match `patterns`, which are the value of the job key `key`.

    The files of the first pattern come first; files of the same pattern are sorted by name. Each
    file is returned only once. A directory with a saved dataset is replaced by the files of the
    dataset.

    Raises:
        BadFile: a saved dataset is incomplete, or has several splits.
        BadRequest: a pattern matches no file.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        # an existing file's name is not a pattern, whatever brackets are in it
        named = [pattern] if Path(pattern).is_file() else glob.iglob(pattern, recursive=True)  # noqa: PTH207
        matches: list[Path] = []
        for path in sorted(map(Path, named)):
            matches += [path] if path.is_file() else saved_files(path) or []
        if not matches:
            raise BadRequest(f"{key}: no file matches {pattern}")
        found.update(dict.fromkeys(matches))
    return list(found)


def text_pieces(path: Path, seen: Seen | None = None) -> Iterator[str]:
    """Yield the text of the file in pieces of about 1 MiB.

    `seen` is called with the number of bytes of the file that have been read.

    Raises:
        BadFile: the file is not UTF-8, or cannot be read; the message names the first wrong byte.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, lines = 0, 1
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                pending = len(decoder.getstate()[0])
                text = _decode(decoder, piece, path, before - pending, lines)
                before += len(piece)
                lines += text.count("\n")
                if seen is not None:
                    seen(before)
                yield text
            _decode(decoder, b"", path, before - len(decoder.getstate()[0]), lines, final=True)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _decode(
    decoder: codecs.IncrementalDecoder,
    piece: bytes,
    path: Path,
    base: int,
    lines: int,
    final: bool = False,
) -> str:
    try:
        return decoder.decode(piece, final)
    except UnicodeDecodeError as error:
        line = lines + error.object.count(b"\n", 0, error.start)
        raise not_utf8(path, line, error, base + error.start) from None


@dataclass(frozen=True)
class Piece:
    """A piece of text that is tokenised in one call.

    `is_last` is True at the end of a file or document.
    """

    text: str
    is_last: bool


def read_pieces(path: Path, data: DataSpec, seen: Seen | None = None) -> Iterator[Piece]:
    """Yield the text of a file: each document as a piece, or pieces of about 1 MiB that end at the
    end of a line.

    `seen` is called with the number of bytes that have been read, unless the file is columnar
    (Parquet, Arrow).

    Raises:
        BadFile: the file cannot be read, is not UTF-8, or does not have the type that its name
            says. The message names the line.
        BadRequest: this interpreter cannot read files of this type.
    """
    if has_documents(path, data):
        for text in read_documents(path, data, seen=seen):
            yield Piece(text, True)
        return
    for text in whole_lines(text_pieces(path, seen)):
        yield Piece(text, False)
    yield Piece("", True)


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text of `pieces` again, in pieces that end at the end of a line."""
    begun: list[str] = []  # joined once: a file may be one long line
    for piece in pieces:
        head, newline, tail = piece.rpartition("\n")
        if newline:
            yield "".join((*begun, head, newline))
            begun = []
        begun.append(tail)
    if rest := "".join(begun):
        yield rest


def measured_sizes(paths: Sequence[Path]) -> list[int]:
    """Check that the files are UTF-8, and return the size of each file in bytes."""
    return [sum(len(piece.encode()) for piece in text_pieces(path)) for path in paths]


def write_bytes(paths: Sequence[Path], data: DataSpec, destination: Path) -> None:
    """Write the text of the files to `destination`, with a newline after each document."""
    with destination.open("wb") as file:
        for path in paths:
            is_text = not has_documents(path, data)
            for piece in read_pieces(path, data):
                end = "" if is_text or piece.text.endswith("\n") else "\n"
                file.write((piece.text + end).encode())


class ByteTokens:
    """The bytes of several files as one stream of tokens, one token per byte.

    `sizes` are the sizes of the files in bytes, from `measured_sizes`.
    """

    vocabulary = BYTES_VOCABULARY

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        self.paths = paths
        self.sizes = sizes
        self._ends = list(itertools.accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the ids of the tokens from index `start` to index `stop`, without `stop`.

        Raises:
            BadFile: a file is shorter than when the job began.
        """
        parts: list[bytes] = []
        index = bisect.bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - self.sizes[index]
            part = self._read_file(index, start - begin, min(stop, self._ends[index]) - start)
            parts.append(part)
            start += len(part)
            index += 1
        return np.frombuffer(b"".join(parts), np.uint8)

    def _read_file(self, index: int, offset: int, count: int) -> bytes:
        if count == 0:
            return b""
        with self.paths[index].open("rb") as file:
            part = os.pread(file.fileno(), count, offset)
        if len(part) != count:
            raise BadFile(
                f"{self.paths[index]} had {self.sizes[index]} bytes when the job began "
                f"but now ends before byte {offset + count}"
            )
        return part


_NUMPY = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_AT_ONCE = 1 << 22


class TokenStream:
    """The ids of several token arrays as one stream. All ids are smaller than `vocabulary`."""

    def __init__(self, arrays: Sequence[TokenArray], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        files = OpenFiles(Path("/"), named_by="data.tokens")
        self._views = [ids_of(array, files) for array in arrays if array.count]
        self._ends = list(itertools.accumulate(len(view) for view in self._views))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the ids of the tokens from index `start` to index `stop`, without `stop`.

        Raises:
            BadFile: a file is missing, or shorter than before.
        """
        parts: list[npt.NDArray[Any]] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - len(self._views[index])
            parts.append(self._views[index].read(start - begin, stop - begin).astype(np.int64))
            start = self._ends[index]
            index += 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def ids_of(array: TokenArray, files: OpenFiles | None = None) -> NumberFile:
    """Return the ids of a token array.

    The file is mapped into memory, so an id is read only when it is used.
    """
    return NumberFile(array.path, _NUMPY[array.type], array.offset, array.count, files=files)


def largest_id(arrays: Sequence[TokenArray]) -> int:
    """Return the largest id in `arrays`; -1 if the arrays have no ids.

    Raises:
        BadFile: an id is negative.
    """
    largest = -1
    for array in arrays:
        ids = ids_of(array)
        for first in range(0, array.count, _AT_ONCE):
            values = ids.read(first, first + _AT_ONCE)
            least = int(values.min())
            if least < 0:
                place = first + int(values.argmin())
                raise BadFile(
                    f"{array.path}: token {place} is {least}, but token ids are 0 or more"
                )
            largest = max(largest, int(values.max()))
    return largest
