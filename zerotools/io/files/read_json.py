"""Reads a JSON file as plain values, in bounded memory.

Before the text is parsed, the memory for all values is estimated from the characters that begin a
value. For example, the values of `[[],[],...` need 30 times as many bytes as the text. Standard
library only: the training process uses this module too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.metadata_memory_limit import (
    SMALL,
    DataSize,
    data_in,
    may_be_read,
    metadata_limit,
)
from zerotools.io.files.regular_files import check_regular, read_regular

# The bytes that CPython 3.11 to 3.13 needs for one value of each kind, with its slot in the list or
# dict. The kind is given by its first character.
_COSTS = {b"{": 230, b"[": 64, b'"': 30, b",": 64}

_MOST_DIGITS = 300  # so that every number can be converted to float

_Pairs = Callable[[list[tuple[str, Any]]], Any]


def read_json(
    path: Path, most: int, *, data_size: DataSize | None = None, is_source: bool = True
) -> Any:
    """Return the values in the JSON file at `path`, which may have at most `most` bytes.

    The size of the file must be in proportion to the data that the file describes. `data_size`
    returns the number of bytes of this data; by default it is the size of all other files in the
    directory.

    Raises:
        OSError: the file is missing or cannot be read.
        BadFile: the file is not a regular file, is larger than `most`, or its values would fill the
            memory.
        ValueError: the file is not JSON in UTF-8, or is nested too deeply.
    """
    if data_size is None:
        data_size = _others(path)
    check_regular(path)
    if not may_be_read(size := path.stat().st_size, data_size):
        raise _too_much(path, size, data_size())
    return parse_json(path, read_regular(path, most, is_source=is_source), data_size)


def _others(path: Path) -> DataSize:
    return lambda: max(0, data_in(path.parent) - path.stat().st_size)


def parse_json(path: Path, data: bytes, data_size: DataSize, pairs: _Pairs | None = None) -> Any:
    """Return the values in the JSON text `data` of the file at `path`. `pairs` is the
    `object_pairs_hook` of `json.loads`.

    Raises:
        BadFile, ValueError: for the same reasons as `read_json`.
    """
    cost = len(data) * (2 if data.isascii() else 5)
    cost += sum(each * data.count(sign) for sign, each in _COSTS.items())
    if cost > SMALL and cost > metadata_limit(given := data_size(), len(data)):
        raise _too_much(path, len(data), given)
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(
            f"it has a number of {len(digits)} digits, but at most {_MOST_DIGITS} are allowed"
        )
    return int(digits)


def _too_much(path: Path, length: int, data_size: int) -> BadFile:
    return BadFile(
        f"{path}: its {length} bytes of JSON would take more memory than in any real checkpoint "
        f"with {data_size} bytes of data: the file was made to fill the memory; do not use it"
    )
