"""The words in which requests are described: references, objects, parameters, answers."""

from __future__ import annotations

from zerotoolsd.api.document.json_schemas import Schema
from zerotoolsd.api.inputs import LARGEST_INT

JSON, PROBLEM = "application/json", "application/problem+json"
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_INT}
ANY_OBJECT: Schema = {"type": "object"}
_REFUSALS = ("400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "503")
TEXT_OR_NULL = {"type": ["string", "null"]}
KEY = {"type": ["string", "null"], "minLength": 1, "maxLength": 200, "pattern": "^[ -~]*$"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(required: tuple[str, ...] | None = None, **properties: Schema) -> Schema:
    names = list(properties) if required is None else list(required)
    tree: Schema = {"type": "object", "properties": properties}
    return {**tree, "required": names} if names else tree


def closed(tree: Schema) -> Schema:
    return {**tree, "additionalProperties": False}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def query_of(name: str, schema: Schema, meaning: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": meaning}


JOB_ID = {"name": "id", "in": "path", "required": True, "schema": {**COUNT, "minimum": 1}}
KNOWN = {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}}
ATTEMPT = query_of("attempt", {**COUNT, "minimum": 1}, "its number; default: the newest")
SINCE = query_of("since", COUNT, "`next` of the answer before")


def operation(
    summary: str,
    answers: dict[str, Schema | None],
    *parameters: Schema,
    body: Schema | None = None,
    content: str = JSON,
) -> Schema:
    """One request; `answers` are its schemas by status, None where there is no body."""
    responses: dict[str, Schema] = {
        status: {"description": summary}
        if schema is None
        else {"description": summary, "content": {content: {"schema": schema}}}
        for status, schema in answers.items()
    }
    problem = {"$ref": "#/components/responses/Problem"}
    responses |= dict.fromkeys(_REFUSALS, problem)
    tree: Schema = {"summary": summary, "responses": responses}
    if parameters:
        tree["parameters"] = list(parameters)
    if body is not None:
        tree["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return tree
