"""The API as an OpenAPI 3.1 document: docs/reference/openapi.json, and /v1/openapi.json.

Schemas come from the dataclasses of responses and requests; `document` lists the requests. Tests
compare the list with the routes, and responses with the schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aiohttp import web

from zerotools.jobs.client.daemon_compatibility import API_VERSION
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.http.api.openapi.answer_schemas import answer_components, explanation_components
from zerotoolsd.http.api.openapi.request_paths import (
    job_paths,
    machine_paths,
    result_components,
    result_paths,
)
from zerotoolsd.http.api.openapi.request_schemas import request_components
from zerotoolsd.http.api.openapi.schema_builders import refusal_components, tables_of
from zerotoolsd.http.api.responses import json_response


@cache
def document() -> dict[str, Any]:
    """Return the whole OpenAPI document."""
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
            "schemas": {
                **tables_of(JobSpec),
                **request_components(),
                **answer_components(),
                **explanation_components(),
                **result_components(),
            },
            "responses": refusal_components(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def query_keys(path: str, method: str) -> tuple[str, ...]:
    """Return the keys that the query of the request `method` `path` may have."""
    operations = document()["paths"].get(path, {})
    found = operations.get("get" if method == "HEAD" else method.lower(), {})
    return tuple(each["name"] for each in found.get("parameters", ()) if each["in"] == "query")


async def openapi(request: web.Request) -> web.Response:
    """Handle GET /v1/openapi.json: return the OpenAPI document."""
    return json_response(document())
