"""The requests about the daemon, the machine and what was committed."""

from __future__ import annotations

from zerotoolsd.api.document.json_schemas import Schema, of_type
from zerotoolsd.api.document.operation_terms import (
    ANY_OBJECT,
    COUNT,
    SINCE,
    TEXT_OR_NULL,
    closed,
    list_of,
    object_of,
    operation,
    query_of,
    ref,
)
from zerotoolsd.api.document.request_schemas import text_schema
from zerotoolsd.api.inputs import MOST_HISTORY_POINTS, MOST_HISTORY_SECONDS, MOST_PEAKS


def bounded(most: int) -> Schema:
    """A whole number from 1 on."""
    return {"type": "integer", "minimum": 1, "maximum": most}


def machine_paths() -> dict[str, dict[str, Schema]]:
    """By path and method."""
    events = object_of(events=list_of(ref("Event")), next=COUNT)
    text: Schema = {"type": "string"}
    return {
        "/v1/drain": {
            "post": operation(
                "Let nothing start any more, also after a restart",
                {"200": ref("Health")},
                body=closed(object_of((), why=text_schema(500))),
            )
        },
        "/v1/undrain": {"post": operation("Let jobs start again", {"200": ref("Health")})},
        "/v1/events": {
            "get": operation(
                "What was committed since",
                {"200": events},
                SINCE,
                query_of(
                    "wait", {"type": "number", "minimum": 0}, "seconds for the first, up to 60"
                ),
            )
        },
        "/v1/events/stream": {
            "get": operation(
                "The events as they come; `id` is `seq`, `data` an Event",
                {"200": text},
                SINCE,
                {"name": "Last-Event-ID", "in": "header", "schema": COUNT},
                content="text/event-stream",
            )
        },
        "/v1/machine": {
            "get": operation(
                "GPUs, memory and leases",
                {
                    "200": object_of(
                        ("snapshot", "leases"),
                        snapshot=ANY_OBJECT,
                        leases=list_of(ANY_OBJECT),
                        launch=object_of(("by", "why"), by=text, why=text, trouble=TEXT_OR_NULL),
                        gpu_locks=ANY_OBJECT,
                        warm_start=ANY_OBJECT,
                        numa=ANY_OBJECT,
                    )
                },
            )
        },
        "/v1/history": {
            "get": operation(
                "The machine and its jobs until now, in columns",
                {
                    "200": object_of(
                        step_seconds=COUNT,
                        times=list_of(COUNT),
                        series=ANY_OBJECT,
                        trouble=TEXT_OR_NULL,
                    )
                },
                query_of("seconds", bounded(MOST_HISTORY_SECONDS), "how far back; default: 3600"),
                query_of("points", bounded(MOST_HISTORY_POINTS), "at most; default: 240"),
            )
        },
        "/v1/peaks": {
            "get": operation(
                "The most that attempts held, also of jobs that were removed",
                {"200": object_of(peaks=list_of(ANY_OBJECT))},
                query_of("job", {**COUNT, "minimum": 1}, "the job; default: all"),
                query_of("limit", bounded(MOST_PEAKS), "at most; default: 100"),
            )
        },
        "/v1/web/links": {
            "post": operation(
                "A link to the page for a browser, of the user who asks; it works once",
                {"201": object_of(url=text, port=COUNT, expires_seconds=of_type(float))},
            )
        },
        "/v1/web/end": {
            "post": operation(
                "End all sessions of browsers of the user who asks",
                {"200": object_of(ended=COUNT)},
            )
        },
        "/v1/shares": {
            "get": operation(
                "What users have used of the GPUs, and who goes first",
                {
                    "200": object_of(
                        ("half_life_seconds", "fair", "users"),
                        half_life_seconds=of_type(float),
                        fair=of_type(bool),
                        users=list_of(ANY_OBJECT),
                    )
                },
            )
        },
        "/v1/health": {
            "get": operation(
                "The daemon",
                {
                    "200": ref("Health"),
                },
            )
        },
        "/metrics": {
            "get": operation(
                "What monitoring reads, as text of Prometheus or as OpenMetrics",
                {"200": text},
                {"name": "Accept", "in": "header", "schema": {"type": "string"}},
                content="text/plain",
            )
        },
        "/v1/openapi.json": {"get": operation("This document", {"200": ANY_OBJECT})},
    }
