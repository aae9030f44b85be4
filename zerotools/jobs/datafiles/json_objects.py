"""Read the JSON objects of a file, one per line or in one array, from the first to the last.

Memory use does not depend on the size of the file. With a limit in bytes, reading stops early
without an error: before a job is accepted, only the first lines are checked.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO

from zerotools.core.errors import BadFile
from zerotools.io.files.regular_files import open_regular

LARGEST = 64 << 20
"""The size limit of one object, in bytes. Larger objects are refused."""
PIECE = 1 << 20
FORM = "write one JSON object per line, or one JSON array of objects"
_NEAR_THE_END = 16
Seen = Callable[[int], None]
"""A callback that is called with the number of bytes that were read from a file so far."""
_SPACE = re.compile(r"\s*")


_OTHERS = (
    (b"\x1f\x8b", "is compressed by gzip; unpack it (gunzip -k)"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd; unpack it (unzstd)"),
    (b"\xfd7zXZ\0", "is compressed by xz; unpack it (unxz -k)"),
    (b"BZh", "is compressed by bzip2; unpack it (bunzip2 -k)"),
    (b"PK\3\4", "is a zip archive; unpack it (unzip)"),
    (b"PAR1", "is Parquet; give it a name that ends in .parquet"),
    (b"ARROW1", "is Arrow; give it a name that ends in .arrow"),
    (b"\xff\xfe", "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"),
)
"""The first bytes of a file of another kind -> the name of the kind, and the advice in the
message.
"""
_LONGEST = max(len(start) for start, _ in _OTHERS)


def read_objects(
    path: Path, budget: int | None = None, seen: Seen | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield each JSON value in the file `path`, as (line, value).

    A value may be something other than an object.

    Reading stops after `budget` bytes, if set. After each value, `seen` is called with the number
    of bytes read.

    Raises:
        BadFile: the file cannot be read, is not a regular file, not UTF-8 or not JSON; the message
            has file and line.
    """
    try:
        with os.fdopen(open_regular(path, is_source=False), "rb") as file:
            start = file.read(PIECE if budget is None else min(PIECE, budget))
            if (other := _other_kind(path, start)) is not None:
                raise other
            file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
            is_array = start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
            if is_array:
                yield from _array(file, path, budget, seen)
                return
            values = _lines(file, path, budget)
            yield from values if seen is None else _with_position(file, values, seen)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _with_position(
    file: BinaryIO, values: Iterator[tuple[int, Any]], seen: Seen
) -> Iterator[tuple[int, Any]]:
    for value in values:
        seen(file.tell())
        yield value


def _lines(file: BinaryIO, path: Path, budget: int | None) -> Iterator[tuple[int, Any]]:
    most, number = LARGEST if budget is None else budget, 0
    while line := file.readline(most + 1):
        number += 1
        place = f"{path}, line {number}"
        if len(line) > most and budget is None:
            raise BadFile(f"{place}: is longer than {LARGEST >> 20} MiB; {FORM}")
        if len(line) > most:
            return
        if budget is not None:
            most -= len(line)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, error) from None
        if not text.strip():
            continue
        try:
            yield number, json.loads(text)
        except JSONDecodeError as error:
            raise _not_json(place, error, error.colno) from None
        except (ValueError, RecursionError) as error:
            raise _not_json(place, error, None) from None


def _array(
    file: BinaryIO, path: Path, budget: int | None, seen: Seen | None
) -> Iterator[tuple[int, Any]]:
    text = _Text(file, path, budget)
    text.skip("[")
    try:
        while text.peek() not in ("]", ""):
            value = text.value()
            if seen is not None:
                seen(text.position)
            yield value
            if (head := text.peek()) == ",":
                text.skip(",")
                if text.peek() == "]":
                    raise BadFile(
                        f"{text.location}: no example follows the comma; remove the comma"
                    )
            elif head not in ("]", ""):
                raise BadFile(
                    f"{text.location}: a comma is missing between two examples; write one there"
                )
    except _OverBudget:
        return
    if text.peek() == "" and not text.is_over_budget:
        raise BadFile(
            f"{text.location}: the array is not closed: the file ends before its ]; add "
            "the ], or copy the file again"
        )
    if text.peek() == "]":
        text.skip("]")
        if text.peek():
            raise BadFile(f"{text.location}: something follows the array; {FORM}")


class _OverBudget(Exception):
    """Raised if the next value begins after the first `budget` bytes of the file."""


class _Text:
    """The text of a JSON file. It is read in blocks: only one block and the current value are in
    memory.
    """

    def __init__(self, file: BinaryIO, path: Path, budget: int | None) -> None:
        self._file, self._path, self._remaining = file, path, budget
        self.position = file.tell()
        """The offset in bytes of the next character."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._buffer, self._at, self._line = "", 0, 1
        self._ended = False
        self._gone = 0
        self.is_over_budget = False

    @property
    def location(self) -> str:
        return f"{self._path}, line {self._line}"

    def peek(self) -> str:
        """Skip white space, and return the next character without moving past it; the empty
        string at the end of the file.
        """
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None
            self._go_to(space.end())
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def skip(self, character: str) -> None:
        """Move past the next character, which must be `character`."""
        assert self.peek() == character
        self._go_to(self._at + 1)

    def value(self) -> tuple[int, Any]:
        """Read the next JSON value. Return the line on which it begins, and the value."""
        line = self._line
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                if self._is_cut(error) and self._more():
                    continue
                if self.is_over_budget:
                    raise _OverBudget from None
                raise self._broken(error) from None
            self._go_to(end)
            return line, value

    def _is_cut(self, error: Exception) -> bool:
        if not isinstance(error, JSONDecodeError) or len(self._buffer) - self._at > LARGEST:
            return False
        near = error.pos >= len(self._buffer) - _NEAR_THE_END
        return near or error.msg.startswith("Unterminated string")

    def _broken(self, error: Exception) -> BadFile:
        end = error.pos if isinstance(error, JSONDecodeError) else self._at
        self._go_to(end)
        return _not_json(self.location, error, 1 + self._columns_before(end))

    def _columns_before(self, end: int) -> int:
        """Return the number of characters on the same line before position `end`.

        Characters that are no longer in memory are counted, too.
        """
        start = self._buffer.rfind("\n", 0, end) + 1
        return end - start + (self._gone if start == 0 else 0)

    def _go_to(self, end: int) -> None:
        self._line += self._buffer.count("\n", self._at, end)
        self.position += len(self._buffer[self._at : end].encode())
        self._at = end

    def _more(self) -> bool:
        # A value that is cut off is parsed again: with pieces of one size, that would be often.
        size = max(PIECE, len(self._buffer) - self._at)
        size = size if self._remaining is None else min(size, self._remaining)
        piece = b"" if self._ended else self._file.read(size)
        if self._remaining is not None:
            self._remaining -= len(piece)
            self.is_over_budget = not size and bool(self._file.read(1))
        if self._ended or self.is_over_budget:
            self._ended = True
            return False
        self._ended = not piece
        try:
            text = self._decoder.decode(piece, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._wrong_byte(error) from None
        if self._ended:
            return False
        self._gone = self._columns_before(self._at)
        self._buffer, self._at = self._buffer[self._at :] + text, 0
        return True

    def _wrong_byte(self, error: UnicodeDecodeError) -> BadFile:
        ahead = self._buffer.count("\n", self._at) + error.object.count(b"\n", 0, error.start)
        return not_utf8(self._path, self._line + ahead, error)


def _not_json(place: str, error: Exception, column: int | None) -> BadFile:
    what = error.msg if isinstance(error, JSONDecodeError) else str(error)
    what = what.removesuffix(" at")  # "Unterminated string starting at"
    where = "" if column is None else f" at column {column}"
    return BadFile(f"{place}: is not JSON: {what}{where}; {FORM}")


def not_utf8(path: Path, line: int, error: UnicodeDecodeError, at: int | None = None) -> BadFile:
    """Return the error for a file that is not UTF-8.

    `line` is the line of the wrong byte, from 1; `at` is its offset in the file, if known.
    """
    with suppress(OSError), path.open("rb") as file:
        if (other := _other_kind(path, file.read(_LONGEST))) is not None:
            return other
    wrong = f"0x{error.object[error.start]:02x}"
    where = f" ({wrong}: {error.reason})"
    if at is not None:
        where = f": byte {at} of the file is {wrong} ({error.reason})"
    return BadFile(f"{path}, line {line}: is not UTF-8{where}; convert the file, or leave it out")


def _other_kind(path: Path, start: bytes) -> BadFile | None:
    """Return the error for a file of another kind, which begins with the bytes `start`; None if the
    kind is not known.
    """
    what = next((what for first, what in _OTHERS if start.startswith(first)), None)
    return None if what is None else BadFile(f"{path} {what}, and give the path of the new file")
