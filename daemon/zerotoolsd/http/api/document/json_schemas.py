"""JSON schemas (draft 2020-12) of dataclasses: those of responses, and those of the job file.

Each dataclass is a component of the document, named after its class; others refer to it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from zerotools.jobs.binding.bind import MAX_INT, hints_of, is_required, table_of
from zerotools.jobs.binding.declaration import keys_of

Schema = dict[str, Any]
_SCALARS: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": -MAX_INT, "maximum": MAX_INT},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


def ref(name: str) -> Schema:
    """Return a reference to the component `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


def of_type(hint: Any) -> Schema:
    """Return the schema of an annotated type."""
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if is_dataclass(hint):
        return ref(component_name(typing.cast("type[Any]", hint)))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_type(each) for each in arguments]}
    if origin is tuple:
        kinds = dict.fromkeys(each for each in arguments if each is not Ellipsis)
        items = [of_type(each) for each in kinds]
        return {"type": "array", "items": items[0] if len(items) == 1 else {"anyOf": items}}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of_type(arguments[1])}
    return {}


def component_name(kind: type[Any]) -> str:
    """Return the name of the component of a dataclass; that of the job file is `Job`."""
    return {"JobSpec": "Job"}.get(kind.__name__, kind.__name__)


def answers_of(*kinds: type[Any]) -> dict[str, Schema]:
    """Return the components of these answers and of all dataclasses in their fields."""
    return _components(of_answer, kinds)


def tables_of(kind: type[Any]) -> dict[str, Schema]:
    """Return the components of a table of the job file and of all tables in it."""
    return _components(of_table, (kind,))


def _components(
    schema: Callable[[type[Any]], Schema], kinds: tuple[type[Any], ...]
) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    left = list(kinds)
    while left:
        kind = left.pop(0)
        if component_name(kind) not in found:
            found[component_name(kind)] = schema(kind)
            left += [each for hint in hints_of(kind).values() for each in _dataclasses_in(hint)]
    return found


def _dataclasses_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for each in get_args(hint):
        yield from _dataclasses_in(each)


def of_answer(kind: type[Any], **more: Schema) -> Schema:
    """Return the schema of a response with all fields of `kind`, and `more`.

    Later versions may add fields.
    """
    hints = hints_of(kind)
    properties = {item.name: of_type(hints[item.name]) for item in fields(kind)} | more
    return {"type": "object", "properties": properties, "required": list(properties)}


def of_table(kind: type[Any]) -> Schema:
    """Return the schema of a table of the job file, which refuses other keys."""
    hints = hints_of(kind)
    tree: Schema = {
        "type": "object",
        "properties": {item.name: _key(item, hints[item.name]) for item in keys_of(kind)},
        "additionalProperties": False,
    }
    if required := [item.name for item in keys_of(kind) if is_required(item)]:
        tree["required"] = required
    return tree


def _key(item: Field[Any], hint: Any) -> Schema:
    if is_dataclass(hint) and isinstance(hint, type):
        return {**of_type(hint), "description": item.metadata["doc"]}
    schema = of_type(hint)
    if (table := table_of(hint)) is not None:
        others = [of_type(each) for each in get_args(hint) if each is not table]
        schema = {"anyOf": [*others, of_type(table)]}
    bounds = {
        "minimum": item.metadata["minimum"],
        "maximum": item.metadata["maximum"],
        "exclusiveMinimum": item.metadata["above"],
    }
    found = {name: value for name, value in bounds.items() if value is not None}
    for each in schema.get("anyOf", [schema]):
        if each.get("type") in ("integer", "number"):
            each.update(found)
    if (allowed := item.metadata["allowed"]) is not None and isinstance(item.default, tuple):
        schema["items"] = {"enum": list(allowed)}
    elif allowed is not None:
        nothing = [None] if type(None) in get_args(hint) or None in allowed else []
        schema = {"enum": [*(each for each in allowed if each is not None), *nothing]}
    if item.default not in (MISSING, None):
        schema["default"] = list(item.default) if isinstance(item.default, tuple) else item.default
    return {**schema, "description": item.metadata["doc"]}
