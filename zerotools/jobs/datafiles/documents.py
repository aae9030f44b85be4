"""Documents to train on: the texts in a column of a file's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.columnar_files import COLUMNAR
from zerotools.jobs.datafiles.csv_rows import SEPARATORS
from zerotools.jobs.datafiles.json_objects import Seen, read_objects
from zerotools.jobs.datafiles.rows import read_records
from zerotools.jobs.datafiles.values import kind_in_words, text_of
from zerotools.jobs.tables.data import AUTO, DataSpec

_SUFFIXES = (*COLUMNAR, *SEPARATORS, ".jsonl", ".ndjson")
_FIRST_BYTES = 1 << 20


def has_documents(path: Path, data: DataSpec) -> bool:
    """Return whether a file of `data.text` holds documents, and not plain text. Raises OSError."""
    if data.documents != AUTO:
        return data.documents == "on"
    return path.suffix.lower() in _SUFFIXES or _begins_with_one(path, data.text_column)


def _begins_with_one(path: Path, name: str) -> bool:
    with path.open("rb") as file:
        if not file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
            return False
    try:
        first: Any = next(iter(read_objects(path, _FIRST_BYTES)), (0, None))[1]
    except BadFile:
        return False
    return isinstance(first, Mapping) and name in first


def read_documents(
    path: Path, data: DataSpec, budget: int | None = None, seen: Seen | None = None
) -> Iterator[str]:
    """Yield the non-empty documents in `path`; `budget` is in bytes. For a JSON file, `seen` gets
    the number of bytes read.

    Raises:
        BadFile: it cannot be read as the kind in its name, or lacks the column; file and line are
            named.
        BadRequest: this interpreter cannot read such files.
    """
    for place, value in read_records(path, budget, (data.text_column,), seen):
        if not isinstance(value, Mapping):
            raise BadFile(
                f"{place}: is {kind_in_words(value)}, not an object with a document in "
                f'"{data.text_column}"; {_OTHERWISE}'
            )
        if data.text_column not in value:
            names = ", ".join(map(str, value)) or "none"
            raise BadFile(
                f'{place}: has no column "{data.text_column}" (data.text_column); it has '
                f"{names:.200}; {_OTHERWISE}"
            )
        if text := text_of(place, value, data.text_column, "data.text_column"):
            yield text


_OTHERWISE = 'with data.documents = "off" the file is trained on as it is'
