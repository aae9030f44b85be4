"""How a key of the job file is declared: a dataclass field with its meaning and its bounds."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any


def key(
    doc: str,
    *,
    default: Any = ...,
    factory: Any = ...,
    allowed: tuple[Any, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    shown: str | None = None,
    path: bool = False,
    words: tuple[str, ...] = (),
) -> Any:
    """A field of the job file: its meaning, default, and the values that it takes.

    `minimum` and `maximum` are inclusive bounds, `above` is an exclusive lower one. `shown` is the
    default that the reference gives for a `factory`. Text in a `path` key is made absolute, unless
    it is one of `words`.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above}
    rules = {"doc": doc, "allowed": allowed, "shown": shown, "path": path, "words": words, **bounds}
    if factory is not ...:
        return field(default_factory=factory, metadata=rules)
    if default is not ...:
        return field(default=default, metadata=rules)
    return field(metadata=rules)


def keys_of(kind: Any) -> list[Field[Any]]:
    """The keys that a table has; a field of another kind is not of the job file."""
    return [item for item in fields(kind) if "doc" in item.metadata]
