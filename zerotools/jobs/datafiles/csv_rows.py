"""Tables of text with a header: `.csv`, and `.tsv` with tabs between the columns."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from zerotools.core.errors import BadFile
from zerotools.io.files.regular import open_regular
from zerotools.jobs.datafiles.json_objects import LARGEST
from zerotools.jobs.datafiles.utf8 import not_utf8

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PIECE = 1 << 20


def read_rows(path: Path, budget: int | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line of its end, record) of each row of `path`; `budget` is in bytes.

    Raises:
        BadFile: it cannot be read, is not UTF-8, has no header, or a row has not as many fields as
            the header; file and line are named.
    """
    csv.field_size_limit(LARGEST)  # of this process; the default is 128 KiB
    try:
        with os.fdopen(
            open_regular(path, is_source=False), encoding="utf-8-sig", newline=""
        ) as file:
            yield from _rows(path, _Lines(file, budget))
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _first_wrong(path) or not_utf8(path, 1, error) from None


def _first_wrong(path: Path) -> BadFile | None:
    """Return the first byte that is not UTF-8; text is decoded in pieces, which have no lines."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with os.fdopen(open_regular(path, is_source=False), "rb") as file:
        while True:
            piece = file.read(_PIECE)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                return not_utf8(path, line + error.object.count(b"\n", 0, error.start), error)
            if not piece:
                return None
            line += piece.count(b"\n")


class _Lines:
    """The lines of a file, as far as the budget goes."""

    def __init__(self, file: TextIO, budget: int | None) -> None:
        self._file, self._left = file, budget
        self.is_over = False

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            if self._left is not None:
                self._left -= len(line.encode("utf-8", "replace"))
                if self._left < 0:
                    self.is_over = True
                    return
            yield line


def _rows(path: Path, lines: _Lines) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(iter(lines), delimiter=SEPARATORS[path.suffix.lower()], strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = row
                twice = next((name for name in header if header.count(name) > 1), None)
                if twice is not None:
                    raise BadFile(f'{path}: its header has the column "{twice}" twice')
                continue
            if len(row) != len(header):
                raise BadFile(
                    f"{path}, line {reader.line_num}: has {len(row)} fields, and the header has "
                    f"{len(header)}"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        if not lines.is_over:  # else the row continues after the part that is read
            raise BadFile(f"{path}, line {reader.line_num}: is not CSV: {error}") from None
