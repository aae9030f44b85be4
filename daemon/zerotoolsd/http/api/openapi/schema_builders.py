"""JSON schemas (draft 2020-12) of dataclasses, and functions that describe requests with them.

Each dataclass becomes a component of the document, with the name of the class. Schemas refer to it
by that name.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from zerotools.jobs.binding.bind import MAX_INT, hints_of, is_required, table_of
from zerotools.jobs.binding.declaration import keys_of
from zerotoolsd.http.api.request_validation import LARGEST_INT

Schema = dict[str, Any]
_SCALARS: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": -MAX_INT, "maximum": MAX_INT},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


def ref(name: str) -> Schema:
    """Return a schema that refers to the component `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


def of_type(hint: Any) -> Schema:
    """Return the schema of the type annotation `hint`."""
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
    """Return the name of the component for the dataclass `kind`; the job file is `Job`."""
    return {"JobSpec": "Job"}.get(kind.__name__, kind.__name__)


def answers_of(*kinds: type[Any]) -> dict[str, Schema]:
    """Return the schemas, by component name, of the given response dataclasses and of all
    dataclasses in their fields.
    """
    return _components(of_answer, kinds)


def tables_of(kind: type[Any]) -> dict[str, Schema]:
    """Return the schemas, by component name, of a table of the job file and of all tables in it."""
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
    """Return the schema of a response with all fields of the dataclass `kind`, and the fields
    `more`.

    The schema allows other fields, because later versions may add fields.
    """
    hints = hints_of(kind)
    properties = {item.name: of_type(hints[item.name]) for item in fields(kind)} | more
    return {"type": "object", "properties": properties, "required": list(properties)}


def of_table(kind: type[Any]) -> Schema:
    """Return the schema of a table of the job file. It does not allow other keys."""
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


JSON, PROBLEM = "application/json", "application/problem+json"
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_INT}
NUMBER: Schema = {**COUNT, "minimum": 1}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
ANY_OBJECT: Schema = {"type": "object"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
WHOLE_OR_NULL: Schema = {"type": ["integer", "null"]}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
KEY = {"type": ["string", "null"], "minLength": 1, "maxLength": 200, "pattern": "^[ -~]*$"}

REFUSALS: Mapping[str, tuple[str, str]] = {
    "400": ("BadRequest", "The request is wrong."),
    "401": ("Unauthorized", "By TCP: the token is missing or wrong."),
    "403": ("Forbidden", "The user may not do this."),
    "404": ("NotFound", "The job or attempt does not exist."),
    "408": ("Timeout", "The body did not come in time."),
    "409": ("Conflict", "The state of the job or of the queue does not allow it."),
    "413": ("TooLarge", "The body is too long."),
    "415": ("Encoded", "The body is compressed."),
    "422": (
        "Unprocessable",
        "zerotools does not support this job, or one of its files is damaged.",
    ),
    "429": (
        "RateLimited",
        "The user sends too many requests; wait for the time of `Retry-After`.",
    ),
    "500": ("Failed", "A defect of the daemon; its log has the details."),
    "503": ("Unavailable", "Not now: the daemon lacks disk space or memory, or is stopping."),
}
"""For each HTTP status that refuses a request, the name of its component and its meaning."""
_OF_ALL = ("400", "401", "415", "429", "500", "503")
"""Statuses with which any request may be refused, before or around its handler."""
_OF_BODIES = ("408", "413")
_OF_JOBS = ("404",)


def object_of(required: tuple[str, ...] | None = None, **properties: Schema) -> Schema:
    names = list(properties) if required is None else list(required)
    tree: Schema = {"type": "object", "properties": properties}
    return {**tree, "required": names} if names else tree


def closed(tree: Schema) -> Schema:
    return {**tree, "additionalProperties": False}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def query_of(name: str, schema: Schema, meaning: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": meaning}


JOB_ID = {"name": "id", "in": "path", "required": True, "schema": NUMBER}
KNOWN = {"name": "If-None-Match", "in": "header", "schema": TEXT}
ATTEMPT = query_of("attempt", NUMBER, "number of the attempt; default: the newest")
SINCE = query_of("since", COUNT, "`next` of the previous response")


def refusal_components() -> dict[str, Schema]:
    """Return the response of each HTTP status that refuses a request, by component name.

    Each of these responses has a `Problem` as its body.
    """
    headers = {
        "401": {"WWW-Authenticate": {"schema": TEXT, "required": True}},
        "429": {"Retry-After": {"schema": COUNT, "required": True}},
    }
    return {
        name: {
            "description": meaning,
            **({"headers": headers[status]} if status in headers else {}),
            "content": {PROBLEM: {"schema": ref("Problem")}},
        }
        for status, (name, meaning) in REFUSALS.items()
    }


def get(
    name: str,
    tag: str,
    summary: str,
    answers: Mapping[str, Schema | None],
    *parameters: Schema,
    refused: tuple[str, ...] = (),
    content: str = JSON,
) -> dict[str, Schema]:
    """Return the OpenAPI description of a GET request.

    `name` is the `operationId` of the request. `answers` maps each HTTP status to the schema of its
    response (None: no body). `refused` are the statuses with which this request can be refused, in
    addition to the statuses that apply to every request.
    """
    return {"get": _operation(name, tag, summary, answers, parameters, refused, content)}


def post(
    name: str,
    tag: str,
    summary: str,
    answers: Mapping[str, Schema | None],
    *parameters: Schema,
    refused: tuple[str, ...] = (),
    body: str | None = None,
    needs_body: bool = True,
) -> dict[str, Schema]:
    """Return the OpenAPI description of a POST request, as `get` does.

    `body` is the component that describes the request body; None: the body must be empty.
    """
    tree = _operation(name, tag, summary, answers, parameters, (*_OF_BODIES, *refused), JSON)
    if body is not None:
        tree["requestBody"] = {"required": needs_body, "content": {JSON: {"schema": ref(body)}}}
    return {"post": tree}


def _operation(
    name: str,
    tag: str,
    summary: str,
    answers: Mapping[str, Schema | None],
    parameters: tuple[Schema, ...],
    refused: tuple[str, ...],
    content: str,
) -> Schema:
    responses: dict[str, Schema] = {
        status: {"description": summary}
        if schema is None
        else {"description": summary, "content": {content: {"schema": schema}}}
        for status, schema in answers.items()
    }
    of_a_job = _OF_JOBS if JOB_ID in parameters else ()
    for status in sorted({*_OF_ALL, *of_a_job, *refused}):
        responses[status] = {"$ref": f"#/components/responses/{REFUSALS[status][0]}"}
    tree: Schema = {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "responses": responses,
    }
    return {**tree, "parameters": list(parameters)} if parameters else tree
