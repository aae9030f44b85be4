"""Search a directory for models and data that can be used in a first job.

The directory and its direct subdirectories are searched, in the order of their names. Only configs
and the first record of data files are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.datafiles.record_files import read_records

CONFIG = "config.json"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
MOST_ENTRIES = 200
_LONGEST_RECORD = 1 << 20
_TEXT = (".txt", ".md", ".rst")
_RECORDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_CONVERSATIONS = frozenset({"messages", "conversations"})
_EXAMPLES = (
    *(frozenset({name}) for name in sorted(_CONVERSATIONS)),
    frozenset({"prompt", "response"}),
    frozenset({"instruction", "output"}),
)
"""Sets of column names.

A file that has all columns of a set contains examples (`[data]` of the job file).
"""
_PREFERENCES = frozenset({"prompt", "chosen", "rejected"})
"""Column names. A file that has all of them contains preferences."""
_DOCUMENTS = "text"
TEXT, EXAMPLES, PREFERENCES = "text", "examples", "preferences"


@dataclass(frozen=True)
class FoundData:
    """A path pattern for data files, and the key of `[data]` that takes such files.

    If `is_conversation` is true, training on the files needs a chat template.
    """

    pattern: str
    key: str
    is_conversation: bool = False


def models_in(directory: Path) -> Iterator[Path]:
    """Yield the model directories in `directory`. A model directory has a config.json with a
    `model_type`.

    Directories with weights come first.
    """
    found = (
        place
        for place in _directories_to_search(directory)
        if isinstance(_object(place / CONFIG).get("model_type"), str)
    )
    yield from sorted(found, key=lambda place: not has_weights(place))


def has_weights(directory: Path) -> bool:
    """Return whether a model directory contains weights in safetensors files."""
    return any(next(directory.glob(pattern), None) is not None for pattern in _WEIGHTS)


def data_in(directory: Path) -> Iterator[FoundData]:
    """Yield the data files in `directory`: first examples and preferences, then text.

    Files of one kind in the same directory are returned as one pattern.
    """
    found = []
    for place in _directories_to_search(directory):
        if (place / CONFIG).is_file():  # a model directory has texts such as its licence, no data
            continue
        for file in _entries(place):
            data = data_of(file) if file.is_file() else None
            if data is not None:
                pattern = FoundData(str(place / f"*{file.suffix}"), data.key)
                found.append(pattern if data.key == TEXT else data)
    yield from sorted(dict.fromkeys(found), key=lambda data: data.key == TEXT)


def data_of(path: Path) -> FoundData | None:
    """Return the kind of data in a file, or in a directory of files; None if it is unknown."""
    if path.is_dir():
        files = (entry for entry in _entries(path) if entry.is_file())
        inside = [data for file in files if (data := data_of(file)) is not None]
        if not inside:
            return None
        first = inside[0]
        return replace(first, pattern=str(path / f"*{Path(first.pattern).suffix}"))
    if not path.is_file():
        return None
    if path.suffix in _TEXT:
        return FoundData(str(path), TEXT)
    if path.suffix not in _RECORDS:
        return None
    columns = _columns(path)
    if columns >= _PREFERENCES:
        return FoundData(str(path), PREFERENCES)
    if any(needed <= columns for needed in _EXAMPLES):
        return FoundData(str(path), EXAMPLES, not _CONVERSATIONS.isdisjoint(columns))
    return FoundData(str(path), TEXT) if _DOCUMENTS in columns else None


def _directories_to_search(directory: Path) -> Iterator[Path]:
    yield directory
    yield from (entry for entry in _entries(directory) if entry.is_dir())


def _entries(directory: Path) -> list[Path]:
    try:
        entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
    return entries[:MOST_ENTRIES]


def _object(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _columns(path: Path) -> frozenset[str]:
    """Return the columns of the first record of a file; an empty set if the file has no record."""
    try:
        _, record = next(read_records(path, _LONGEST_RECORD), ("", None))
    except ZerotoolsError:  # it is not what its name says, or pyarrow is not installed
        return frozenset()
    return frozenset(record) if isinstance(record, dict) else frozenset()
