"""Functions that describe requests: objects, parameters, responses and refusals."""

from __future__ import annotations

from collections.abc import Mapping

from zerotoolsd.http.api.document.json_schemas import Schema, ref
from zerotoolsd.http.api.request_validation import LARGEST_INT

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
"""The component of each status that refuses, and its meaning."""
_OF_ALL = ("400", "401", "415", "429", "500", "503")
"""Refusals of the gate, and of the frame around every handler, which any request may get."""
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
ATTEMPT = query_of("attempt", NUMBER, "its number; default: the newest")
SINCE = query_of("since", COUNT, "`next` of the answer before")


def refusal_components() -> dict[str, Schema]:
    """Return the components of the statuses that refuse: all of them answer a Problem."""
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
    """Describe a GET request.

    It has its `operationId`, the responses by status (None: no body), and the statuses of refusals
    that not every request has.
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
    """Describe a POST request as `get` does; `body` is the component of its body.

    Every one reads a body; without a component it must be empty.
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
