"""Declare a key of the job file: a dataclass field with its description, default and allowed
values.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypedDict, Unpack


class KeyRules(TypedDict, total=False):
    """The rules of a key. A rule without a value does not apply.

    Attributes:
        stored_default: The value for jobs that were stored before the key existed: the behaviour of
            zerotools at that time. Without it, these jobs get the key's default.
        allowed: If set, the only values that the key may have.
        minimum: An inclusive lower bound.
        maximum: An inclusive upper bound.
        above: An exclusive lower bound.
        shown: The text of the default in the reference, for a key with `factory`.
        path: True if strings are paths, which are made absolute, except those in `words`.
        url: True if the path may also be a URL of an object store.
        words: Strings that are not paths, although `path` is true.
        engine: The only engine that has the key, or the table.
        deepspeed: The dotted key of DeepSpeed's JSON with the same meaning.
        accelerate: The dotted key of accelerate's YAML with the same meaning.
        imported: False if neither DeepSpeed's nor accelerate's config has a key with this meaning.
            For a table: if neither has any key of the table.
    """

    stored_default: Any
    allowed: tuple[Any, ...] | None
    minimum: float | None
    maximum: float | None
    above: float | None
    shown: str | None
    path: bool
    url: bool
    words: tuple[str, ...]
    engine: str | None
    deepspeed: str | None
    accelerate: str | None
    imported: bool


_NO_RULES: KeyRules = {
    "stored_default": ...,
    "allowed": None,
    "minimum": None,
    "maximum": None,
    "above": None,
    "shown": None,
    "path": False,
    "url": False,
    "words": (),
    "engine": None,
    "deepspeed": None,
    "accelerate": None,
    "imported": True,
}


def key(doc: str, *, default: Any = ..., factory: Any = ..., **given: Unpack[KeyRules]) -> Any:
    """Return a dataclass field that declares a key of the job file.

    Args:
        doc: The description, one or two sentences of Markdown for the reference.
        default: The value if the file does not have the key. Without `default` and `factory`, the
            key is required.
        factory: A function that returns the default.
        given: The rules of the key.
    """
    unknown = given.keys() - _NO_RULES.keys()
    if unknown:
        raise TypeError(f"unknown rules for a key: {', '.join(sorted(unknown))}")
    rules = {"doc": doc, **_NO_RULES, **given}
    if factory is not ...:
        return field(default_factory=factory, metadata=rules)
    if default is not ...:
        return field(default=default, metadata=rules)
    return field(metadata=rules)


def keys_of(kind: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a table's dataclass that are keys of the job file."""
    return _keys(kind if isinstance(kind, type) else type(kind))


@cache
def _keys(kind: type[Any]) -> tuple[Field[Any], ...]:
    return tuple(item for item in fields(kind) if "doc" in item.metadata)


def stored_default_of(item: Field[Any]) -> Any:
    """Return the value of the key `item` for a job that was stored before the key existed.

    Return Ellipsis (`...`) if this value is the key's default.
    """
    return item.metadata["stored_default"]


@cache
def means_none(item: Field[Any]) -> bool:
    """Return whether the key must be written if its value is None.

    It must be written if a job file without the key would get another value than None.
    """
    left_out = (item.default, stored_default_of(item))
    return any(value not in (None, MISSING, ...) for value in left_out)


def with_stored_defaults(table: Any) -> Any:
    """Return the defaults of a table for a job that was stored before the table existed.

    `table` has the current defaults. In the result, a key with a `stored_default` has that value
    instead.
    """
    changes: dict[str, Any] = {}
    for item in keys_of(table):
        value = getattr(table, item.name)
        if is_dataclass(value):
            changes[item.name] = with_stored_defaults(value)
        elif stored_default_of(item) is not ...:
            changes[item.name] = stored_default_of(item)
    return replace(table, **changes) if changes else table
