"""Read the records of a data file. The file's extension selects the parser.

`.csv` and `.tsv` are tables with a header, `.parquet` and `.arrow` (as Hugging Face's `datasets`
saves them) are read by pyarrow, and every other file is JSON.
"""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from zerotools.core.errors import BadFile
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import open_regular
from zerotools.jobs.datafiles.json_objects import LARGEST, Seen, not_utf8, read_objects

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PIECE = 1 << 20
PARQUET, ARROW = ".parquet", ".arrow"
COLUMNAR = (PARQUET, ARROW)
STATE, SPLITS = "state.json", "dataset_dict.json"
_ROWS_AT_ONCE = 1024
_LARGEST_STATE = 2**24
_MAX_COLUMNS = 20
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bytes: "bytes",
    type(None): "null",
}


def read_records(
    path: Path,
    budget: int | None = None,
    columns: tuple[str, ...] = (),
    seen: Seen | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield each record of the file `path`, as (place, value). `place` is a text with the file and
    the line, for messages. A value in a JSON file may be something other than an object.

    Reading stops after `budget` bytes, if set. From a Parquet or Arrow file, only the columns in
    `columns` are read; if the file has none of them, all columns are read. For a JSON file, `seen`
    is called with the number of bytes read.

    Raises:
        BadFile: the file is not what its extension says; the message has file and line.
        BadRequest: this interpreter lacks the package for such files.
    """
    suffix = path.suffix.lower()
    if suffix in COLUMNAR:
        for number, record in enumerate(read_columnar(path, budget, columns), 1):
            yield f"{path}, row {number}", record
    elif suffix in SEPARATORS:
        for line, row in read_rows(path, budget):
            yield f"{path}, line {line}", row
    else:
        for line, value in read_objects(path, budget, seen):
            yield f"{path}, line {line}", value


def read_rows(path: Path, budget: int | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row of the CSV or TSV file `path`, as (line number, record). The line number is
    that of the last line of the row, from 1.

    Reading stops after `budget` bytes, if set.

    Raises:
        BadFile: the file cannot be read, is not UTF-8 or not CSV, its header repeats a column, or a
            row has another number of fields than the header; the message has the file.
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
    """Return the error for the first byte of the file that is not UTF-8; None if all bytes are
    UTF-8. The file is read again in blocks, to find the line number."""
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
    """An iterator over the lines of a file, up to a limit of bytes."""

    def __init__(self, file: TextIO, budget: int | None) -> None:
        self._file, self._remaining = file, budget
        self.is_over = False

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            if self._remaining is not None:
                self._remaining -= len(line.encode("utf-8", "replace"))
                if self._remaining < 0:
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
                    raise BadFile(
                        f'{path}: its header has the column "{twice}" twice; rename one of the two'
                    )
                continue
            if len(row) != len(header):
                raise BadFile(
                    f"{path}, line {reader.line_num}: has {len(row)} fields, but the header has "
                    f"{len(header)}; correct the line"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        if not lines.is_over:  # else the row may continue beyond the budget
            raise BadFile(f"{path}, line {reader.line_num}: is not CSV: {error}") from None


def saved_files(directory: Path) -> list[Path] | None:
    """Return the Arrow files of the dataset that the package `datasets` saved in `directory`; None
    if the directory has no such dataset.

    Raises:
        BadFile: a file of the dataset is missing, or the directory has several splits.
    """
    if (directory / SPLITS).is_file():
        names = _json(directory / SPLITS).get("splits")
        splits = [str(name) for name in names] if isinstance(names, list) else []
        raise BadFile(
            f"{directory} is a saved dataset with splits ({', '.join(splits) or 'none'}); name "
            f"one of them, such as {directory / (splits[0] if splits else 'train')}"
        )
    if not (directory / STATE).is_file():
        return None
    listed = _json(directory / STATE).get("_data_files")
    if not isinstance(listed, list):
        return None
    files = [directory / str(entry.get("filename")) for entry in listed if isinstance(entry, dict)]
    for path in files:
        if not path.is_file():
            raise BadFile(
                f"{path} is missing, but {directory / STATE} lists it; save the dataset again"
            )
    return files


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = read_json(path, _LARGEST_STATE, is_source=False)
    except (OSError, ValueError, BadFile):
        raise BadFile(f"{path} cannot be read as JSON; save the dataset again") from None
    return tree if isinstance(tree, dict) else {}


def read_columnar(
    path: Path, budget: int | None = None, columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the records of the Parquet or Arrow file `path`, with only these `columns` (default:
    all). With a `budget` in bytes, only the first records are read.

    Raises:
        BadFile: the file is not what its extension says, or lacks some of `columns`.
        BadRequest: this interpreter has no pyarrow.
    """
    try:
        import pyarrow
    except ImportError:
        raise package_not_installed(f"{path}: reading such files", "pyarrow") from None
    try:
        batches = _parquet if path.suffix.lower() == PARQUET else _arrow
        for batch in batches(path, columns):
            yield from batch.to_pylist()
            if budget is not None:
                return
    except pyarrow.ArrowException as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadFile(f"{path}: cannot be read as {path.suffix[1:]}: {line}") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}") from None


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path, memory_map=True) as file:
        _check_columns(path, file.schema_arrow.names, columns)
        yield from file.iter_batches(_ROWS_AT_ONCE, columns=list(columns) or None)


def _arrow(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow
    from pyarrow import ipc

    with pyarrow.memory_map(str(path)) as file:
        # `datasets` writes streams; Feather files and pyarrow's own begin with a magic word.
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = ipc.open_file(file) if is_file else ipc.open_stream(file)
        _check_columns(path, reader.schema.names, columns)
        read = (
            (reader.get_batch(number) for number in range(reader.num_record_batches))
            if is_file
            else reader
        )
        for batch in read:
            yield batch.select(list(columns)) if columns else batch


def _check_columns(path: Path, there: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in there:
            names = shown_names(dict.fromkeys(there))
            raise BadFile(f'{path}: has no column "{name}"; it has {names}')


def column_value(place: str, tree: Mapping[str, Any], name: str, key: str) -> Any:
    """Return the value of the column `name` in the record `tree`.

    `key` is the key of the job file that sets the column's name; it is used in messages.

    Raises:
        BadFile: the record has no such column.
    """
    if name not in tree:
        raise BadFile(
            f'{place}: has no column "{name}" ({key}); it has {shown_names(tree)}; set {key} to '
            "another column, or correct the record"
        )
    return tree[name]


def text_of(place: str, tree: Mapping[str, Any], name: str, key: str) -> str:
    """Return the text in the column `name` of the record `tree`; the empty string if the value
    is null. Raises BadFile.
    """
    value = column_value(place, tree, name, key)
    return "" if value is None else checked_text(f'{place}: "{name}"', value)


def checked_text(what: str, value: Any) -> str:
    """Return `value` if it is a string that can be encoded as UTF-8.

    Otherwise raise BadFile; `what` names the value in the message.
    """
    if not isinstance(value, str):
        raise BadFile(f"{what} is {kind_in_words(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise BadFile(
            f"{what} has {half}, which is only half of a character; write the other half, too"
        ) from None
    return value


def shown_names(tree: Mapping[str, Any]) -> str:
    """Return the names of a record's columns as text for a message.

    If there are many columns, only the first names are shown.
    """
    names = [str(name) for name in tree]
    shown = ", ".join(names[:_MAX_COLUMNS]) + (", ..." if len(names) > _MAX_COLUMNS else "")
    return shown or "none"


def kind_in_words(value: Any) -> str:
    """Return the JSON type of `value` in words, for a message."""
    return _KINDS.get(type(value), "text" if isinstance(value, str) else type(value).__name__)
