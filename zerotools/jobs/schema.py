"""How a key of the job file is declared: a dataclass field with its meaning and its bounds."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def key(
    doc: str,
    *,
    default: Any = ...,
    factory: Any = ...,
    allowed: tuple[Any, ...] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> Any:
    """A field of the job file: its meaning, default, and the values that it takes.

    `least` and `most` are inclusive bounds, `above` an exclusive lower one.
    """
    rules = {"doc": doc, "allowed": allowed, "least": least, "most": most, "above": above}
    if factory is not ...:
        return field(default_factory=factory, metadata=rules)
    if default is not ...:
        return field(default=default, metadata=rules)
    return field(metadata=rules)
