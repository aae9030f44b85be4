"""Parquet files, and Arrow files as Hugging Face's `datasets` saves them: both through pyarrow.

A saved dataset is a directory: `state.json` names its Arrow files. One with several splits has a
`dataset_dict.json` and a directory for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.json_file import read_json
from zerotools.io.files.packages import missing
from zerotools.jobs.datafiles.values import shown_names

PARQUET, ARROW = ".parquet", ".arrow"
COLUMNAR = (PARQUET, ARROW)
STATE, SPLITS = "state.json", "dataset_dict.json"
_ROWS_AT_ONCE = 1024
_LARGEST_STATE = 2**24


def saved_files(directory: Path) -> list[Path] | None:
    """Return the Arrow files of a dataset that was saved in `directory`; None: none was.

    Raises:
        BadFile: a file of it is missing, or it holds several splits.
    """
    if (directory / SPLITS).is_file():
        names = _json(directory / SPLITS).get("splits")
        splits = [str(name) for name in names] if isinstance(names, list) else []
        raise BadFile(
            f"{directory} is a saved dataset with the splits {', '.join(splits) or 'of none'}: "
            f"name one of them, such as {directory / (splits[0] if splits else 'train')}"
        )
    if not (directory / STATE).is_file():
        return None
    listed = _json(directory / STATE).get("_data_files")
    if not isinstance(listed, list):
        return None
    files = [directory / str(entry.get("filename")) for entry in listed if isinstance(entry, dict)]
    for path in files:
        if not path.is_file():
            raise BadFile(f"{path} is missing, and {directory / STATE} names it; save it again")
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
    """Yield the records of `path`, only `columns` if some are named; with a `budget`, the first
    ones.

    Raises:
        BadFile: it is not of the kind in its name, or lacks some of `columns`.
        BadRequest: this interpreter has no pyarrow.
    """
    try:
        import pyarrow
    except ImportError:
        raise missing(f"{path}: reading such files", "pyarrow") from None
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
