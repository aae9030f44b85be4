"""The API as an OpenAPI 3.1 document: what docs/reference/openapi.json is, and /v1/openapi.json.

Schemas come from the dataclasses that are answered and bound; `document` lists the requests. Tests
compare the list with the routes, and what is answered with the schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aiohttp import web

from zerotools.jobs.client.api_versions import API_VERSION
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.api.answers import answer
from zerotoolsd.api.document.job_paths import job_paths
from zerotoolsd.api.document.json_schemas import Schema, of_answer, of_table, of_type
from zerotoolsd.api.document.machine_paths import machine_paths
from zerotoolsd.api.document.operation_terms import PROBLEM, object_of, ref
from zerotoolsd.api.document.request_schemas import CLEAN_SCHEMA, HEALTH_SCHEMA
from zerotoolsd.api.document.result_paths import result_paths
from zerotoolsd.service.exchanged import AttemptView, CleanedJob, Event, JobView, KeptJob


def _schemas() -> dict[str, Schema]:
    attempt = {"anyOf": [ref("AttemptView"), {"type": "null"}]}
    return {
        "Job": of_table(JobSpec),
        "JobView": of_answer(JobView, attempt=attempt),
        "AttemptView": of_answer(AttemptView),
        "Event": of_answer(Event),
        "Health": HEALTH_SCHEMA,
        "CleanedJob": of_answer(CleanedJob),
        "KeptJob": of_answer(KeptJob),
        "CleanRequest": CLEAN_SCHEMA,
        "Problem": object_of(
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
            "version": str(API_VERSION),
            "description": "The queue of training jobs on this machine; zerotools help http-api.",
        },
        "servers": [{"url": "http://localhost"}],
        "security": [{}, {"token": []}],
        "paths": {**job_paths(), **result_paths(), **machine_paths()},
        "components": {
            "schemas": _schemas(),
            "responses": {
                "Problem": {
                    "description": "Why not (RFC 9457)",
                    "content": {PROBLEM: {"schema": ref("Problem")}},
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
