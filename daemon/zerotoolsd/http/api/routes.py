"""Makes the HTTP application: routes, the gate before every handler, and the conversion of errors
around it. The gate rejects a request on a closed connection, above the rate limit, or without
authorization.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from zerotoolsd.http.api import (
    clean_requests,
    events,
    import_job_file,
    job_outputs,
    jobs,
    machine_and_daemon_requests,
    request_validation,
)
from zerotoolsd.http.api.aiohttp_app_keys import (
    ACTIONS,
    CONCURRENCY_LIMIT,
    PAGE,
    PEOPLE,
    RIGHTS,
    SERVICE,
    TOKENS,
    JobPage,
    NoPage,
)
from zerotoolsd.http.api.authorize import decide, peer_uid, turn_of
from zerotoolsd.http.api.bearer_tokens import BearerTokens
from zerotoolsd.http.api.connection_limits import handling
from zerotoolsd.http.api.openapi import openapi_document
from zerotoolsd.http.api.openapi.openapi_document import query_keys
from zerotoolsd.http.api.request_limits import ConcurrencyLimit, RateLimit
from zerotoolsd.http.api.request_validation import LARGEST_BODY, routes_of
from zerotoolsd.http.api.responses import problem_response, problems
from zerotoolsd.interface.api_types import Unauthorized
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Action, Rights

ROUTES: tuple[tuple[web.RouteDef, Action], ...] = (
    (web.post("/v1/jobs", jobs.submit), Action.SUBMIT),
    (web.post("/v1/arrays", jobs.submit_array), Action.SUBMIT),
    (web.post("/v1/adoptions", jobs.adopt), Action.ADOPT),
    (web.post("/v1/check", jobs.check), Action.CHECK),
    (web.post("/v1/import", import_job_file.read_job_file), Action.CHECK),
    (web.get("/v1/jobs", jobs.list_jobs), Action.LIST),
    (web.get("/v1/jobs/{id}", jobs.show), Action.SHOW),
    (web.get("/v1/jobs/{id}/explain", jobs.explain), Action.EXPLAIN),
    (web.post("/v1/jobs/{id}/cancel", jobs.cancel), Action.CANCEL),
    (web.post("/v1/jobs/{id}/resume", jobs.resume), Action.RESUME),
    (web.post("/v1/jobs/{id}/priority", jobs.set_priority), Action.SET_PRIORITY),
    (web.post("/v1/jobs/{id}/hold", jobs.hold), Action.HOLD),
    (web.post("/v1/jobs/{id}/release", jobs.release), Action.RELEASE),
    (web.post("/v1/jobs/{id}/pause", jobs.pause), Action.PAUSE),
    (web.post("/v1/jobs/{id}/unpause", jobs.unpause), Action.UNPAUSE),
    (web.post("/v1/jobs/{id}/array", jobs.change_array), Action.CHANGE_ARRAY),
    (web.post("/v1/jobs/{id}/array/retry", jobs.retry_array), Action.RETRY),
    (web.post("/v1/jobs/{id}/edit", jobs.edit), Action.EDIT),
    (web.post("/v1/jobs/{id}/retry", jobs.retry), Action.RETRY),
    (web.get("/v1/jobs/{id}/logs", job_outputs.logs), Action.READ_LOGS),
    (web.get("/v1/jobs/{id}/progress", job_outputs.progress), Action.READ_PROGRESS),
    (web.get("/v1/jobs/{id}/curves", job_outputs.curves), Action.READ_PROGRESS),
    (web.get("/v1/jobs/{id}/checkpoints", job_outputs.checkpoints), Action.READ_RESULTS),
    (web.get("/v1/jobs/{id}/predictions", job_outputs.predictions), Action.READ_RESULTS),
    (web.get("/v1/jobs/{id}/examples", job_outputs.examples), Action.READ_EXAMPLES),
    (web.post("/v1/clean", clean_requests.clean), Action.CLEAN),
    (web.post("/v1/drain", machine_and_daemon_requests.drain), Action.DRAIN),
    (web.post("/v1/undrain", machine_and_daemon_requests.undrain), Action.DRAIN),
    (web.post("/v1/notices/test", machine_and_daemon_requests.test_notices), Action.TEST_NOTICES),
    (web.get("/v1/events", events.events), Action.FOLLOW_EVENTS),
    (web.get("/v1/events/stream", events.stream, allow_head=False), Action.FOLLOW_EVENTS),
    (web.get("/v1/openapi.json", openapi_document.openapi), Action.SEE_DAEMON),
    (web.get("/v1/machine", machine_and_daemon_requests.machine), Action.SEE_MACHINE),
    (web.get("/v1/history", machine_and_daemon_requests.history), Action.SEE_MACHINE),
    (web.get("/v1/peaks", machine_and_daemon_requests.peaks), Action.SEE_MACHINE),
    (web.get("/v1/shares", machine_and_daemon_requests.shares), Action.SEE_SHARES),
    (web.post("/v1/web/links", machine_and_daemon_requests.make_link), Action.OPEN_PAGE),
    (web.post("/v1/web/end", machine_and_daemon_requests.end_sessions), Action.OPEN_PAGE),
    (web.get("/v1/health", machine_and_daemon_requests.health), Action.SEE_DAEMON),
    (web.get("/metrics", machine_and_daemon_requests.metrics), Action.SEE_METRICS),
)
"""All routes, each with the action that decides who may send it.

No handler is reached without one.
"""


def make_app(
    service: JobRequests,
    tokens: BearerTokens | None = None,
    rights: Rights | None = None,
    people: UserDirectory | None = None,
    page: JobPage | None = None,
    rate: RateLimit | None = None,
) -> web.Application:
    """Return the HTTP application that serves the requests of `service`.

    `tokens` identify clients that connect by TCP. `rights` authorize requests (default: the rights
    for a daemon with one user). `people` looks up the names of users, `page` makes links to the
    page for browsers, and `rate` limits the requests of each user.
    """
    middlewares = [problems, gate_middleware(rate or RateLimit())]
    app = web.Application(middlewares=middlewares, client_max_size=LARGEST_BODY)
    app[SERVICE] = service
    app[RIGHTS] = rights or Rights()
    app[PEOPLE] = people or UserDirectory()
    app[PAGE] = page or NoPage()
    app[CONCURRENCY_LIMIT] = ConcurrencyLimit()
    app[ACTIONS] = {route.handler: action for route, action in ROUTES}
    if tokens is not None:
        app[TOKENS] = tokens
    app.add_routes(routes_of(route for route, _ in ROUTES))
    return app


WRONG_TOKENS = 10.0
"""The largest number of requests without a valid token that are checked per second."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def gate_middleware(rate: RateLimit) -> Middleware:
    """Return the middleware that checks every request, with the rate limit `rate`."""
    strangers = RateLimit(WRONG_TOKENS, WRONG_TOKENS)

    @web.middleware
    async def check_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        with handling(request):
            if request.transport is None or request.transport.is_closing():
                return web.Response(status=499)  # no client reads it
            request_validation.refuse_encoded(request)
            now = asyncio.get_running_loop().time()
            try:
                uid = peer_uid(request)
            except Unauthorized:
                if (wait := strangers.wait_for(0, now)) > 0:
                    return _too_often(strangers, wait)
                raise
            if (wait := rate.wait_for(uid, now)) > 0:
                return _too_often(rate, wait)
            resource = request.match_info.route.resource
            if request.query_string and resource is not None:
                known = query_keys(resource.canonical, request.method)
                request_validation.check_query(request.query, known)
            await decide(request, uid)
            async with turn_of(request):
                return await handler(request)

    return check_request


def _too_often(rate: RateLimit, wait: float) -> web.Response:
    why = f"more than {rate.per_second:g} requests a second; try again in {wait:.3f} s"
    answer = problem_response(429, "rate_limited", why)
    answer.headers["Retry-After"] = str(math.ceil(wait))
    return answer
