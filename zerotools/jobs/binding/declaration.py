"""How a key of the job file is declared: a dataclass field with its meaning and its bounds."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from functools import cache
from typing import Any


def key(
    doc: str,
    *,
    default: Any = ...,
    factory: Any = ...,
    stored_default: Any = ...,
    allowed: tuple[Any, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    shown: str | None = None,
    path: bool = False,
    url: bool = False,
    words: tuple[str, ...] = (),
    engine: str | None = None,
    deepspeed: str | None = None,
    accelerate: str | None = None,
    imported: bool = True,
) -> Any:
    """Return a field of the job file: its meaning, its default, and its allowed values.

    Args:
        doc: The meaning, one or two sentences of Markdown for the reference.
        stored_default: The value for jobs that were stored before the key existed: the behaviour of
            zerotools at that time. By default `default`.
        allowed: The only values.
        minimum, maximum: Inclusive bounds.
        above: An exclusive lower bound.
        shown: The default that the reference shows for a `factory`.
        path: A string is a path, which is made absolute, unless it is one of `words`.
        url: The path may also be a URL of an object store.
        engine: The only engine that has the key, or the table.
        deepspeed: The dotted key of DeepSpeed's JSON with the same meaning.
        accelerate: The dotted key of accelerate's YAML with the same meaning.
        imported: False if no such config has a key with this meaning, or with the meaning of any
            key of the table.
    """
    rules = {
        "doc": doc,
        "stored_default": stored_default,
        "allowed": allowed,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "shown": shown,
        "path": path,
        "url": url,
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


def keys_of(kind: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a table that are keys of the job file. Other fields of the dataclass are
    omitted."""
    return _keys(kind if isinstance(kind, type) else type(kind))


@cache
def _keys(kind: type[Any]) -> tuple[Field[Any], ...]:
    return tuple(item for item in fields(kind) if "doc" in item.metadata)


def stored_default_of(item: Field[Any]) -> Any:
    """Return the value of the key `item` for a job that was stored before the key existed; `...`
    means the key's default."""
    return item.metadata["stored_default"]


@cache
def means_none(item: Field[Any]) -> bool:
    """Return whether a tree must have the key even if its value is None, because the default is
    another value."""
    left_out = (item.default, stored_default_of(item))
    return any(value not in (None, MISSING, ...) for value in left_out)


def with_stored_defaults(table: Any) -> Any:
    """Return `table` with the values that its keys have for a job stored before all of them
    existed."""
    changes: dict[str, Any] = {}
    for item in keys_of(table):
        value = getattr(table, item.name)
        if is_dataclass(value):
            changes[item.name] = with_stored_defaults(value)
        elif stored_default_of(item) is not ...:
            changes[item.name] = stored_default_of(item)
    return replace(table, **changes) if changes else table
