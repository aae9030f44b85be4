"""The HTTP application: routes, limits, and the error frame around every handler."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.api import cleaning, jobs, machine, openapi, outputs, stream
from zerotoolsd.api.doors.rate import RateLimit
from zerotoolsd.api.doors.tokens import BearerTokens
from zerotoolsd.api.gate import gate
from zerotoolsd.api.inputs import LARGEST_BODY
from zerotoolsd.api.keys import SERVICE, TOKENS
from zerotoolsd.api.problems import problems
from zerotoolsd.service import JobService


def make_app(service: JobService, tokens: BearerTokens | None = None) -> web.Application:
    """The API over `service`; `tokens` say who comes by TCP."""
    app = web.Application(middlewares=[problems, gate(RateLimit())], client_max_size=LARGEST_BODY)
    app[SERVICE] = service
    if tokens is not None:
        app[TOKENS] = tokens
    app.add_routes(
        [
            web.post("/v1/jobs", jobs.submit),
            web.post("/v1/check", jobs.check),
            web.get("/v1/jobs", jobs.list_jobs),
            web.get("/v1/jobs/{id}", jobs.show),
            web.get("/v1/jobs/{id}/explain", jobs.explain),
            web.post("/v1/jobs/{id}/cancel", jobs.cancel),
            web.post("/v1/jobs/{id}/resume", jobs.resume),
            web.post("/v1/jobs/{id}/priority", jobs.set_priority),
            web.get("/v1/jobs/{id}/logs", outputs.logs),
            web.get("/v1/jobs/{id}/progress", outputs.progress),
            web.post("/v1/clean", cleaning.clean),
            web.get("/v1/events", machine.events),
            web.get("/v1/events/stream", stream.stream, allow_head=False),
            web.get("/v1/openapi.json", openapi.openapi),
            web.get("/v1/machine", machine.machine),
            web.get("/v1/health", machine.health),
            web.get("/metrics", machine.metrics),
        ]
    )
    return app
