"""The members of JSON objects, each checked where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported


@dataclass(frozen=True, slots=True)
class JsonFields:
    """One JSON object of the file `path`; `place` says which, for messages."""

    path: Path
    place: str
    values: Any

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise self.wrong("is not an object")

    def wrong(self, what: str) -> BadFile:
        return BadFile(f"{self.path}: {self.place} {what}; save the checkpoint again")

    def text(self, key: str) -> str:
        if isinstance(value := self.values.get(key), str):
            return value
        raise self.wrong(f"has no text {key!r}")

    def flag(self, key: str) -> bool:
        if isinstance(value := self.values.get(key), bool):
            return value
        raise self.wrong(f"has no true or false {key!r}")

    def number(self, key: str) -> int | float:
        if type(value := self.values.get(key)) in (int, float):
            return value  # type: ignore[no-any-return]
        raise self.wrong(f"has no number {key!r}")

    def count(self, key: str) -> int:
        if type(value := self.values.get(key)) is int and 0 <= value < 2**63:
            return value
        raise self.wrong(f"has no count {key!r}")

    def dtype(self, key: str) -> DType:
        """Raises:
        Unsupported: a type that zerotools does not know."""
        name = self.text(key)
        try:
            return dtypes.dtype_named(name)
        except Unsupported as error:
            raise Unsupported(f"{self.path}: {self.place}: {error}") from None

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def array(self, key: str) -> list[Any]:
        if isinstance(value := self.values.get(key), list):
            return value
        raise self.wrong(f"has no array {key!r}")

    def texts(self, key: str) -> tuple[str, ...]:
        if all(isinstance(value, str) for value in self.array(key)):
            return tuple(self.array(key))
        raise self.wrong(f"has values in {key!r} that are not text")

    def counts(self, key: str) -> tuple[int, ...]:
        """Sizes or indices."""
        if all(type(value) is int and 0 <= value < 2**63 for value in self.array(key)):
            return tuple(self.array(key))
        raise self.wrong(f"has values in {key!r} that are not counts")

    def table(self, key: str) -> JsonFields:
        return JsonFields(self.path, f"{key!r} of {self.place}", self.values.get(key))

    def tables(self, key: str) -> Iterator[JsonFields]:
        for number, value in enumerate(self.array(key)):
            yield JsonFields(self.path, f"entry {number} of {key!r} of {self.place}", value)
