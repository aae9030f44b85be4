"""Examples to fine-tune on, by the columns that a job names: a prompt, its response, a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.json_objects import FORM, read_objects
from zerotools.jobs.tables.data import DataSpec

_MAX_COLUMNS = 20
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class TextExample:
    """One example of a file, as text. `place` is its file and line."""

    place: str
    prompt: str
    response: str
    history: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask or nothing to answer."""
        return not self.prompt or not self.response


def read_examples(path: Path, data: DataSpec, budget: int | None = None) -> Iterator[TextExample]:
    """The examples in `path`, by the columns that `data` names; `budget` is in bytes.

    Raises:
        BadFile: it cannot be read, is not UTF-8 or JSON, or lacks a column; file and line are
            named.
    """
    for line, value in read_objects(path, budget):
        yield _record(f"{path}, line {line}", value, data)


def _record(place: str, value: Any, data: DataSpec) -> TextExample:
    if not isinstance(value, Mapping):
        raise BadFile(f"{place}: is {_kind(value)}, not an object; {FORM}")
    return TextExample(
        place,
        _text(place, value, data.prompt_column, "data.prompt_column"),
        _text(place, value, data.response_column, "data.response_column"),
        () if data.history_column is None else _history(place, value, data.history_column),
    )


def _column(place: str, tree: Mapping[str, Any], name: str, key: str) -> Any:
    if name not in tree:
        names = [str(other) for other in tree]
        shown = ", ".join(names[:_MAX_COLUMNS]) + (", ..." if len(names) > _MAX_COLUMNS else "")
        there = f"it has {shown}" if names else "it has none"
        raise BadFile(f'{place}: there is no column "{name}" ({key}); {there}')
    return tree[name]


def _text(place: str, tree: Mapping[str, Any], name: str, key: str) -> str:
    value = _column(place, tree, name, key)
    return "" if value is None else _checked(f'{place}: "{name}"', value)


def _checked(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadFile(f"{what} is {_kind(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise BadFile(f"{what} has {half}, half a character: write the other half too") from None
    return value


def _history(place: str, tree: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    value = _column(place, tree, name, "data.history_column")
    turns = [] if value is None else value
    what = f'{place}: "{name}"'
    if not isinstance(turns, list):
        raise BadFile(f"{what} is {_kind(turns)}, not a list of [prompt, response] pairs")
    pairs = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, list) or len(turn) != 2:
            raise BadFile(f"{what}: turn {number} is not a pair [prompt, response]")
        pairs.append((_checked(f"{what}: turn {number}", turn[0]), _checked(what, turn[1])))
    return tuple(pairs)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), "text")
