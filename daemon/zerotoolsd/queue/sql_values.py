"""Converts values so that SQLite stores them and returns them unchanged.

File names on Linux are bytes. In a name that is not UTF-8, Python represents some bytes as lone
surrogates (PEP 383); JSON from a rank may contain lone surrogates, too. sqlite3 refuses such texts.
So they are stored as BLOBs in UTF-8 with `surrogatepass`, and a stored path still opens the same
file.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

LONGEST_REASON = 4000
"""Length in characters above which a sentence is shortened before it is stored. Programs write
messages of any length.
"""
_AT_ONCE = 2000
"""Number of keys of a table that are converted in one step of `json_steps`."""


_AS_THEY_ARE = frozenset({int, type(None)})


class Unstorable(OverflowError, ValueError):
    """SQLite cannot store the value, or would change it."""


def sql_value(value: object) -> object:
    """Return the form of `value` that is passed to an SQL statement. Raises Unstorable."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.isascii() and "\0" not in value else _stored_text(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Unstorable(f"a number of {value.bit_length()} bits does not fit in 64 bits")
    if isinstance(value, float) and math.isnan(value):
        raise Unstorable("NaN cannot be stored")  # SQLite makes it NULL
    return value


def stored_row(row: Iterable[object]) -> list[object]:
    """Return the values of a row in the form that is passed to an SQL statement.

    Raises Unstorable. The statement itself raises OverflowError for integers that are too large.
    """
    return [value if type(value) in _AS_THEY_ARE else sql_value(value) for value in row]


def _stored_text(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text.encode() if "\0" in text else text


def loaded_row(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row as a dict, keyed by column name. Texts that `sql_value` has converted are
    converted back.
    """
    return {
        column[0]: _loaded(value) if isinstance(value, bytes) else value
        for column, value in zip(cursor.description, row, strict=True)
    }


def _loaded(value: bytes) -> str:
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value.decode("utf-8", "backslashreplace")  # it was damaged after it was written


def shortened_reason(sentence: str | None) -> str | None:
    """Return `sentence` without its middle, if it is longer than LONGEST_REASON characters."""
    if sentence is None or len(sentence) <= LONGEST_REASON:
        return sentence
    half = LONGEST_REASON // 2
    return f"{sentence[:half]} … {sentence[-half:]}"


def one_line(said: str) -> str:
    """Return the message `said` of a program as one line, with control characters escaped. The
    result is used in sentences and in the log of the daemon.
    """
    return said if said.isprintable() else "".join(map(_plain, said))


def _plain(letter: str) -> str:
    if letter.isspace():
        return " "
    is_of_name = "\udc80" <= letter <= "\udcff"  # a byte of a file's name that is not UTF-8
    shown = letter.isprintable() or is_of_name
    return letter if shown else letter.encode("unicode_escape").decode()


def json_of(tree: Mapping[str, Any]) -> str:
    """Return `tree` as JSON text. Equal trees give equal texts."""
    return json.dumps(tree, sort_keys=True)


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE))


def json_steps(tree: Mapping[str, Any]) -> Generator[None, None, str]:
    """Return the same text as `json_of`. This is a generator that works in short steps and yields
    after each, because a large table takes long.
    """
    parts = list[str]()
    for key in sorted(tree):
        value, name = tree[key], json.dumps(key)
        if isinstance(value, Mapping) and value:
            pieces = list[str]()
            for names in _batches(sorted(value)):
                pieces.append(json_of({each: value[each] for each in names})[1:-1])
                yield
            parts.append(f"{name}: {{{', '.join(pieces)}}}")
        else:
            parts.append(f"{name}: {json.dumps(value, sort_keys=True)}")
        yield
    return f"{{{', '.join(parts)}}}"
