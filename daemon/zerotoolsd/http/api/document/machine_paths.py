"""The requests about the daemon, the machine and the events."""

from __future__ import annotations

from zerotoolsd.http.api.document.json_schemas import Schema, ref
from zerotoolsd.http.api.document.operation_terms import (
    COUNT,
    NUMBER,
    SINCE,
    TEXT,
    get,
    post,
    query_of,
)
from zerotoolsd.http.api.request_validation import (
    MOST_HISTORY_POINTS,
    MOST_HISTORY_SECONDS,
    MOST_PEAKS,
)

_DAEMON, _EVENTS, _MACHINE, _PAGE = "daemon", "events", "machine", "page"


def _bounded(most: int) -> Schema:
    """Return the schema of an integer from 1 to `most`."""
    return {"type": "integer", "minimum": 1, "maximum": most}


def machine_paths() -> dict[str, dict[str, Schema]]:
    """Return the operations by path and method."""
    return {
        "/v1/drain": post(
            "drainQueue",
            _DAEMON,
            "Start no more jobs, also after a restart",
            {"200": ref("Health")},
            refused=("403",),
            body="DrainRequest",
        ),
        "/v1/undrain": post(
            "undrainQueue",
            _DAEMON,
            "Let jobs start again",
            {"200": ref("Health")},
            refused=("403",),
        ),
        "/v1/events": get(
            "listEvents",
            _EVENTS,
            "Events committed since",
            {"200": ref("EventPage")},
            SINCE,
            query_of("wait", {"type": "number", "minimum": 0}, "seconds for the first, up to 60"),
        ),
        "/v1/events/stream": get(
            "streamEvents",
            _EVENTS,
            "The events as they come; `id` is `seq`, `data` an Event",
            {"200": TEXT},
            SINCE,
            {"name": "Last-Event-ID", "in": "header", "schema": COUNT},
            content="text/event-stream",
        ),
        "/v1/machine": get(
            "getMachine", _MACHINE, "GPUs, memory and leases", {"200": ref("Machine")}
        ),
        "/v1/history": get(
            "getHistory",
            _MACHINE,
            "The machine and its jobs until now, in columns",
            {"200": ref("History")},
            query_of("seconds", _bounded(MOST_HISTORY_SECONDS), "how far back; default: 3600"),
            query_of("points", _bounded(MOST_HISTORY_POINTS), "at most; default: 240"),
        ),
        "/v1/peaks": get(
            "listPeaks",
            _MACHINE,
            "Peak use of attempts, of removed jobs too",
            {"200": ref("PeakList")},
            query_of("job", NUMBER, "the job; default: all"),
            query_of("limit", _bounded(MOST_PEAKS), "at most; default: 100"),
        ),
        "/v1/shares": get(
            "getShares",
            _MACHINE,
            "GPU use per user, and whose jobs start first",
            {"200": ref("Shares")},
        ),
        "/v1/web/links": post(
            "createPageLink",
            _PAGE,
            "A link to the page for a browser, of the user who asks; it works once",
            {"201": ref("PageLink")},
            refused=("409",),
        ),
        "/v1/web/end": post(
            "endPageSessions",
            _PAGE,
            "End all sessions of browsers of the user who asks",
            {"200": ref("EndedSessions")},
        ),
        "/v1/health": get("getHealth", _DAEMON, "The daemon", {"200": ref("Health")}),
        "/metrics": get(
            "getMetrics",
            _DAEMON,
            "Metrics for monitoring, as Prometheus text or OpenMetrics",
            {"200": TEXT},
            {"name": "Accept", "in": "header", "schema": TEXT},
            content="text/plain",
        ),
        "/v1/openapi.json": get(
            "getOpenApi", _DAEMON, "This document", {"200": ref("OpenApiDocument")}
        ),
    }
