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
    engine: str | None = None,
    deepspeed: str | None = None,
    accelerate: str | None = None,
    imported: bool = True,
) -> Any:
    """A field of the job file: its meaning, default, and the values that it takes.

    Args:
        doc: The meaning, one or two sentences of Markdown for the reference.
        allowed: The only values.
        minimum, maximum: Inclusive bounds.
        above: An exclusive lower bound.
        shown: The default that the reference gives for a `factory`.
        path: Text is a path, which is made absolute, unless it is one of `words`.
        engine: The only engine that has the key, or the table.
        deepspeed: The dotted key of DeepSpeed's JSON that says the same.
        accelerate: The dotted key of accelerate's YAML that says the same.
        imported: False if neither of the two has such a key, or any key of the table.
    """
    rules = {
        "doc": doc,
        "allowed": allowed,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "shown": shown,
        "path": path,
        "words": words,
        "engine": engine,
        "deepspeed": deepspeed,
        "accelerate": accelerate,
        "imported": imported,
    }
    if factory is not ...:
        return field(default_factory=factory, metadata=rules)
    if default is not ...:
        return field(default=default, metadata=rules)
    return field(metadata=rules)


def keys_of(kind: Any) -> list[Field[Any]]:
    """The keys that a table has; a field of another kind is not of the job file."""
    return [item for item in fields(kind) if "doc" in item.metadata]
