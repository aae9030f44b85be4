"""The API as an OpenAPI 3.1 document: what docs/reference/openapi.json is, and /v1/openapi.json.

Schemas come from the dataclasses that are answered and bound; the requests are listed here. Tests
compare the list with the routes, and what is answered with the schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aiohttp import web

import zerotools
from zerotools.jobs.states import STATES
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.api.answers import answer
from zerotoolsd.api.inputs import LARGEST_INT
from zerotoolsd.api.json_schemas import Schema, of_answer, of_table, of_type
from zerotoolsd.api.request_schemas import (
    ARRAY_SCHEMA,
    CLEAN_SCHEMA,
    EDIT_SCHEMA,
    HEALTH_SCHEMA,
    PRIORITY_SCHEMA,
    TERMS_SCHEMA,
    text_schema,
)
from zerotoolsd.explaining.explanation import Holder, QueuePlace
from zerotoolsd.service import AttemptView, CleanedJob, Event, JobView, KeptJob

JSON, PROBLEM = "application/json", "application/problem+json"
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_INT}
_ANY_OBJECT: Schema = {"type": "object"}
_REFUSALS = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "503")
_TEXT_OR_NULL = {"type": ["string", "null"]}
_KEY = {"type": ["string", "null"], "minLength": 1, "maxLength": 200, "pattern": "^[ -~]*$"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: tuple[str, ...] | None = None, **properties: Schema) -> Schema:
    names = list(properties) if required is None else list(required)
    tree: Schema = {"type": "object", "properties": properties}
    return {**tree, "required": names} if names else tree


def _closed(tree: Schema) -> Schema:
    return {**tree, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _query(name: str, schema: Schema, meaning: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": meaning}


_ID = {"name": "id", "in": "path", "required": True, "schema": {**_COUNT, "minimum": 1}}
_KNOWN = {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}}
_ATTEMPT = _query("attempt", {**_COUNT, "minimum": 1}, "its number; default: the newest")
_SINCE = _query("since", _COUNT, "`next` of the answer before")


def _operation(
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


def _explanation() -> Schema:
    none, number = {"type": "null"}, {"type": ["number", "null"]}
    whole, text_or_null = {"type": ["integer", "null"]}, _TEXT_OR_NULL
    retries = _object(
        used=_COUNT,
        max=_COUNT,
        rule={"enum": ["auto", "always"]},
        cause=text_or_null,
        after=text_or_null,
        cause_ends=_COUNT,
        cause_max=whole,
        counts=of_type(bool),
        next_try=number,
    )
    end = _object(
        attempt=_COUNT,
        cause_kind=text_or_null,
        cause=text_or_null,
        rank=whole,
        exit_code=whole,
        signal=whole,
        steps_done=_COUNT,
        saved_step=whole,
        ended=number,
    )
    notice = _object(
        notice=of_type(str),
        channel={"enum": ["webhook", "command"]},
        tries=_COUNT,
        next_try=of_type(float),
        trouble=text_or_null,
    )
    return _object(
        id=_COUNT,
        name=of_type(str),
        state=of_type(str),
        why=text_or_null,
        place={"anyOf": [of_answer(QueuePlace), none]},
        holders=_list(of_answer(Holder)),
        retries=retries,
        end={"anyOf": [end, none]},
        resumed_from=text_or_null,
        notifications=_list(notice),
        events=_list(_ref("Event")),
    )


def _paths() -> dict[str, dict[str, Schema]]:
    job, notes = _ref("JobView"), _object(notes=_list(of_type(str)))
    events = _object(events=_list(_ref("Event")), next=_COUNT)
    text: Schema = {"type": "string"}
    return {
        "/v1/jobs": {
            "post": _operation(
                "Queue a job, durably; 200: its idempotency key was seen before",
                {"201": job, "200": job},
                body=_closed(
                    _object(("job",), job=_ref("Job"), idempotency_key=_KEY, **TERMS_SCHEMA)
                ),
            ),
            "get": _operation(
                "Jobs, the newest first",
                {
                    "200": _object(jobs=_list(job), next={"anyOf": [_COUNT, {"type": "null"}]}),
                    "304": None,
                },
                _query("state", {"type": "string", "enum": list(STATES)}, "in this state alone"),
                _query("limit", {**_COUNT, "minimum": 1, "maximum": 1000}, "default: 100"),
                _query("after", _COUNT, "ids below this: `next` of the page before"),
                _query("name", text, "of this name alone"),
                _query("array", {**_COUNT, "minimum": 1}, "of this array alone"),
                _query("user", text, "of this user alone: a name, a uid, or `me`"),
                _KNOWN,
            ),
        },
        "/v1/jobs/{id}": {"get": _operation("A job", {"200": job, "304": None}, _ID, _KNOWN)},
        "/v1/jobs/{id}/explain": {
            "get": _operation(
                "Why it waits, was tried again or ended", {"200": _explanation()}, _ID
            )
        },
        "/v1/jobs/{id}/cancel": {"post": _operation("Ask for its end", {"202": job}, _ID)},
        "/v1/jobs/{id}/resume": {
            "post": _operation(
                "Let a held job go on (200), or queue a new one that goes on (201)",
                {"200": job, "201": job},
                _ID,
            )
        },
        "/v1/jobs/{id}/priority": {
            "post": _operation(
                "Let it wait with another priority",
                {"200": job},
                _ID,
                body=_closed(_object(priority=PRIORITY_SCHEMA)),
            )
        },
        "/v1/jobs/{id}/edit": {
            "post": _operation(
                "Change one that has never started",
                {"200": job},
                _ID,
                body=_closed(_object((), **EDIT_SCHEMA)),
            )
        },
        "/v1/jobs/{id}/retry": {
            "post": _operation(
                "Queue one that is over once more, from the start",
                {"201": job},
                _ID,
                body=_closed(_object((), output_dir=text_schema(4096))),
            )
        },
        "/v1/jobs/{id}/hold": {
            "post": _operation("Let it wait until it is released", {"200": job}, _ID)
        },
        "/v1/jobs/{id}/release": {
            "post": _operation("Let one that is on hold take its turn", {"200": job}, _ID)
        },
        "/v1/jobs/{id}/logs": {
            "get": _operation(
                "Bytes of a rank's output; headers say where they lie",
                {"200": text},
                *(_ID, _ATTEMPT, _query("rank", _COUNT, "default: 0")),
                _query("offset", of_type(int), "in bytes; from the end where it is negative"),
                _query("limit", {**_COUNT, "maximum": 2**20}, "bytes; default: 65536"),
                content="application/octet-stream",
            )
        },
        "/v1/jobs/{id}/progress": {
            "get": _operation(
                "What its ranks reported",
                {
                    "200": _object(
                        records=_list(_ANY_OBJECT), next=_COUNT, attempt=_COUNT, over=of_type(bool)
                    )
                },
                *(_ID, _ATTEMPT, _SINCE),
            )
        },
        "/v1/check": {
            "post": _operation(
                "What a submit would be refused for",
                {"200": notes},
                body=_closed(
                    _object(("job",), job=_ref("Job"), model=of_type(bool), **TERMS_SCHEMA)
                ),
            )
        },
        "/v1/arrays": {
            "post": _operation(
                "Queue a job many times, each with what it has of its own: all of them or none",
                {"201": _object(jobs=_list(job))},
                body=_closed(
                    _object(
                        ("job",),
                        job=_ref("Job"),
                        idempotency_key=_KEY,
                        **TERMS_SCHEMA,
                        **ARRAY_SCHEMA,
                    )
                ),
            )
        },
        "/v1/clean": {
            "post": _operation(
                "Remove jobs that are over",
                {
                    "200": _object(
                        jobs=_list(_ref("CleanedJob")),
                        kept=_list(_ref("KeptJob")),
                        dry_run=of_type(bool),
                    )
                },
                body=_ref("CleanRequest"),
            )
        },
        "/v1/drain": {
            "post": _operation(
                "Let nothing start any more, also after a restart",
                {"200": _ref("Health")},
                body=_closed(_object((), why=text_schema(500))),
            )
        },
        "/v1/undrain": {"post": _operation("Let jobs start again", {"200": _ref("Health")})},
        "/v1/events": {
            "get": _operation(
                "What was committed since",
                {"200": events},
                _SINCE,
                _query("wait", {"type": "number", "minimum": 0}, "seconds for the first, up to 60"),
            )
        },
        "/v1/events/stream": {
            "get": _operation(
                "The events as they come; `id` is `seq`, `data` an Event",
                {"200": text},
                _SINCE,
                {"name": "Last-Event-ID", "in": "header", "schema": _COUNT},
                content="text/event-stream",
            )
        },
        "/v1/machine": {
            "get": _operation(
                "GPUs, memory and leases",
                {
                    "200": _object(
                        ("snapshot", "leases"),
                        snapshot=_ANY_OBJECT,
                        leases=_list(_ANY_OBJECT),
                        launch=_object(("by", "why"), by=text, why=text, trouble=_TEXT_OR_NULL),
                        gpu_locks=_ANY_OBJECT,
                    )
                },
            )
        },
        "/v1/shares": {
            "get": _operation(
                "What users have used of the GPUs, and who goes first",
                {
                    "200": _object(
                        ("half_life_seconds", "fair", "users"),
                        half_life_seconds=of_type(float),
                        fair=of_type(bool),
                        users=_list(_ANY_OBJECT),
                    )
                },
            )
        },
        "/v1/health": {
            "get": _operation(
                "The daemon",
                {
                    "200": _ref("Health"),
                },
            )
        },
        "/metrics": {
            "get": _operation(
                "What monitoring reads, as text of Prometheus or as OpenMetrics",
                {"200": text},
                {"name": "Accept", "in": "header", "schema": {"type": "string"}},
                content="text/plain",
            )
        },
        "/v1/openapi.json": {"get": _operation("This document", {"200": _ANY_OBJECT})},
    }


def _schemas() -> dict[str, Schema]:
    attempt = {"anyOf": [_ref("AttemptView"), {"type": "null"}]}
    return {
        "Job": of_table(JobSpec),
        "JobView": of_answer(JobView, attempt=attempt),
        "AttemptView": of_answer(AttemptView),
        "Event": of_answer(Event),
        "Health": HEALTH_SCHEMA,
        "CleanedJob": of_answer(CleanedJob),
        "KeptJob": of_answer(KeptJob),
        "CleanRequest": CLEAN_SCHEMA,
        "Problem": _object(
            title=of_type(str), status=of_type(int), detail=of_type(str), code=of_type(str)
        ),
    }


@cache
def document() -> dict[str, Any]:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "zerotoolsd",
            "version": zerotools.__version__,
            "description": "The queue of training jobs on this machine; see http-api.md.",
        },
        "servers": [{"url": "http://localhost"}],
        "security": [{}, {"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "responses": {
                "Problem": {
                    "description": "Why not (RFC 9457)",
                    "content": {PROBLEM: {"schema": _ref("Problem")}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def query_keys(path: str, method: str) -> tuple[str, ...]:
    """The keys that the query of a request may have."""
    operations = document()["paths"].get(path, {})
    found = operations.get("get" if method == "HEAD" else method.lower(), {})
    return tuple(each["name"] for each in found.get("parameters", ()) if each["in"] == "query")


async def openapi(request: web.Request) -> web.Response:
    """GET /v1/openapi.json."""
    return answer(document())
