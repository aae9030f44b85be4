"""Trees of plain values as JSON. What JSON lacks is an object of one member, which names the type:
`{"tuple": [...]}`, `{"dict": [[key, value], ...]}`, `{"bytes": "00ff"}`, `{"dtype": "float16"}`.
Numbers that are not finite are as Python's `json` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core import dtypes
from zerotools.core.dtypes import DType

DEEPEST = 32
MOST_VALUES = 100_000


class NotPlain(ValueError):
    """A value of another type, or more of them than a run has reason to keep."""


class _Encoder:
    """A tree from a pickle may contain itself, and small ones may repeat a part without end."""

    def __init__(self) -> None:
        self._values = 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        self._values += 1
        if depth > DEEPEST or self._values > MOST_VALUES:
            raise NotPlain(f"more than {DEEPEST} levels or {MOST_VALUES} values")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(part, depth + 1) for part in i] for i in value.items()]}
        if type(value) in (list, tuple):
            parts = [self.encode(part, depth + 1) for part in value]
            return parts if type(value) is list else {"tuple": parts}
        raise NotPlain(f"an object of {type(value).__name__}")


def encode(value: Any) -> Any:
    """What stands for `value` in JSON.

    Raises:
        NotPlain: JSON cannot hold it.
    """
    return _Encoder().encode(value)


def decode(found: Any) -> Any:
    """The value that `found` stands for.

    Raises:
        ValueError: `encode` never gives that.
        Unsupported: an element type that zerotools does not know.
    """
    if isinstance(found, list):
        return [decode(part) for part in found]
    if not isinstance(found, dict):
        return found
    match found:
        case {"dtype": str(name)}:
            return dtypes.dtype_named(name)
        case {"bytes": str(digits)}:
            return bytes.fromhex(digits)
        case {"tuple": list(parts)}:
            return tuple(map(decode, parts))
        case {"dict": list(items)}:
            return dict(_decode_item(item) for item in items)
    raise ValueError(f"an object of {', '.join(found) or 'nothing'}")


def _decode_item(item: Any) -> tuple[Any, Any]:
    match item:
        case [key, value] if isinstance(key := decode(key), str | bytes | int | float | None):
            return key, decode(value)
    raise ValueError("an item that is not a key and a value")
