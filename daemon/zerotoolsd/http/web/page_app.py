"""The requests that a page may make: its files, its session, and some requests of the API.

Headers of the responses restrict browsers: they load nothing from other sites, do not embed the
page, and cache nothing.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

import zerotools
from zerotools.jobs.states import VERBS
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import ACTIONS, CONCURRENCY_LIMIT, PEOPLE, RIGHTS, SERVICE
from zerotoolsd.http.api.request_limits import ConcurrencyLimit
from zerotoolsd.http.api.request_validation import routes_of
from zerotoolsd.http.api.responses import json_response, problem_response, problems
from zerotoolsd.http.api.routes import ROUTES
from zerotoolsd.http.web.bundle_page_files import page_files
from zerotoolsd.http.web.page_gate import (
    COOKIES,
    OPEN,
    SESSION,
    SESSIONS,
    close_to_strangers,
    cookie_name,
    page_gate,
)
from zerotoolsd.http.web.sessions import WebSessions
from zerotoolsd.interface.api_types import Forbidden, NotFound
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Action, Rights

OF_API = frozenset(
    {
        *("/v1/jobs", "/v1/jobs/{id}", "/v1/jobs/{id}/explain", "/v1/jobs/{id}/logs"),
        *("/v1/jobs/{id}/progress", "/v1/jobs/{id}/curves", "/v1/jobs/{id}/checkpoints"),
        *(
            "/v1/jobs/{id}/predictions",
            "/v1/jobs/{id}/examples",
            "/v1/events",
            "/v1/events/stream",
            "/v1/machine",
        ),
        *("/v1/history", "/v1/peaks", "/v1/health"),
    }
)
CHANGES = frozenset(
    {
        *("/v1/import", "/v1/check", "/v1/jobs"),
        *(f"/v1/jobs/{{id}}/{do}" for do in ("cancel", "edit", "priority", *VERBS)),
    }
)
_NONCE = re.compile(r"[0-9a-f]{16,64}", re.ASCII)


def make_page_app(
    service: JobRequests,
    sessions: WebSessions,
    rights: Rights,
    people: UserDirectory,
    gate: Middleware | None = None,
) -> web.Application:
    """Return the application that serves the page's port.

    Requests pass the middleware `gate` (default: `page_gate()`).
    """
    middlewares = [close_to_strangers, problems, page_gate() if gate is None else gate]
    app = web.Application(middlewares=middlewares, client_max_size=request_validation.LARGEST_BODY)
    app[SERVICE], app[RIGHTS], app[PEOPLE], app[CONCURRENCY_LIMIT] = (
        service,
        rights,
        people,
        ConcurrencyLimit(),
    )
    app[SESSIONS] = sessions
    app[PICTURES] = PictureDocuments()
    actions = {route.handler: action for route, action in ROUTES}
    app[ACTIONS] = {**actions, draw_checkpoint: Action.READ_RESULTS}
    app[OPEN] = frozenset({index, page_file, welcome, follow_link, hello, show_picture})
    own = [
        web.get("/", index),
        web.get("/page/{name:.+}", page_file),
        web.get("/link/{token}", welcome, allow_head=False),
        web.post("/link/{token}", follow_link),
        web.get("/hello", hello),
        web.get("/session", session),
        web.post("/session/end", end_session),
        web.get("/v1/jobs/{id}/checkpoints/{step}/picture", draw_checkpoint),
        web.get("/picture/{token}", show_picture),
    ]
    app.add_routes(routes_of([*own, *(route for route, _ in ROUTES if _is_of_page(route))]))
    app.on_response_prepare.append(add_headers)
    return app


def _is_of_page(route: web.RouteDef) -> bool:
    wanted = OF_API if route.method in ("GET", "HEAD") else CHANGES
    return route.path in wanted


async def index(request: web.Request) -> web.Response:
    """Handle GET /: return the page; without a session, return how to get a session."""
    if not request[COOKIES]:
        return send(request, "no-session.html", status=401)
    return send(request, "index.html")


async def page_file(request: web.Request) -> web.Response:
    """Handle GET /page/{name}: return a file of the page."""
    return send(request, request.match_info["name"])


async def welcome(request: web.Request) -> web.Response:
    """Handle GET /link/{token}: return a page that follows the link with a POST request.

    Because of this step, the link is not used up when a browser or a messenger fetches it for a
    preview.
    """
    return send(request, "welcome.html")


async def follow_link(request: web.Request) -> web.Response:
    """Handle POST /link/{token}: begin a session, and return the secrets for the page."""
    await request_validation.no_body(request)
    found = request.app[SESSIONS].redeem(request.match_info["token"])
    if found is None:
        raise Forbidden("this link is used up, or too old: type `zerotools web` for a new one")
    cookie, of = found
    response = json_response({"id": of.id, "key": of.key, "secret": of.secret}, status=201)
    response.set_cookie(
        cookie_name(request.app, of), cookie, path="/", httponly=True, samesite="Strict"
    )
    return response


async def hello(request: web.Request) -> web.Response:
    """Handle GET /hello?session=&nonce=: return the proof that this daemon has the key of that
    session.

    A page sends this request without its cookie.
    """
    request_validation.check_query(request.query, ("session", "nonce"))
    nonce, found = request.query.get("nonce", ""), None
    if _NONCE.fullmatch(nonce):
        found = request.app[SESSIONS].named(request.query.get("session", ""))
    if found is None:
        raise NotFound("this session does not exist: type `zerotools web` for a new link")
    return json_response({"proof": found.proof(nonce)})


async def session(request: web.Request) -> web.Response:
    """Handle GET /session: return the user of the page."""
    of = request[SESSION]
    caller = await request.app[PEOPLE].find(of.uid)
    rights = request.app[RIGHTS]
    tree: dict[str, Any] = {
        "uid": of.uid,
        "name": caller.name,
        "administrator": rights.is_administrator(caller),
        "host": socket.gethostname(),
        "version": zerotools.__version__,
    }
    return json_response(tree)


async def end_session(request: web.Request) -> web.Response:
    """Handle POST /session/end: end the session of the page."""
    await request_validation.no_body(request)
    of = request[SESSION]
    request.app[SESSIONS].end(of)
    response = problem_response(200, "ended", "the session has ended")
    # Not del_cookie: that of aiohttp 3.9 takes no attributes.
    response.set_cookie(
        cookie_name(request.app, of), "", max_age=0, path="/", httponly=True, samesite="Strict"
    )
    return response


PICTURES: web.AppKey[PictureDocuments] = web.AppKey("pictures")


async def draw_checkpoint(request: web.Request) -> web.Response:
    """Handle GET /v1/jobs/{id}/checkpoints/{step}/picture: return the address of the picture."""
    step = request_validation.query_integer(request.match_info, "step", None, minimum=0)
    assert step is not None
    job_id = request_validation.job_id(request)
    document = await request.app[SERVICE].picture(job_id, step)
    return json_response({"url": f"/picture/{request.app[PICTURES].add(document)}"})


async def show_picture(request: web.Request) -> web.Response:
    """Handle GET /picture/{token}: return a single document, which needs no session."""
    document = request.app[PICTURES].find(request.match_info["token"])
    if document is None:
        raise NotFound("this picture is no longer kept: draw it again from the page")
    return web.Response(
        body=document.encode(),
        content_type="text/html",
        charset="utf-8",
        headers=PICTURE_HEADERS,
    )


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts and styles come only from files of the page, and no text becomes markup (W3C, "Content
Security Policy Level 3" and "Trusted Types")."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that restrict browsers to a response."""
    for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
        response.headers.setdefault(name, value)


def send(request: web.Request, name: str, *, status: int = 200) -> web.Response:
    """Return the file `name` as a response, compressed if the browser accepts this.

    Return status 304 without a body if the browser already has the file.
    """
    file = page_files().get(name)
    if file is None:
        raise web.HTTPNotFound
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    known = [each.strip() for each in request.headers.get("If-None-Match", "").split(",")]
    if status == 200 and file.tag in known:
        return web.Response(status=304, headers=headers)
    data = file.data
    if file.packed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        data, headers["Content-Encoding"] = file.packed, "gzip"
    return web.Response(
        status=status, body=data, content_type=file.kind, charset="utf-8", headers=headers
    )


KEPT_SECONDS, MOST_KEPT = 600.0, 32
PICTURE_HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
}
"""Headers of the response. The sandbox gives the document an origin of its own, so that it has
neither the session of the page nor its storage, also in a frame of the page. The document itself
allows its one script.
"""


class PictureDocuments:
    """Keeps documents in memory for a short time.

    A browser that follows a link cannot send the session's secret, because the secret is sent in a
    header. So each address contains a token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, document: str) -> str:
        """Keep a document, and return its token. Above the limit, drop the oldest document."""
        token = secrets.token_urlsafe(32)
        self._kept[token] = (self._clock() + KEPT_SECONDS, document)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return token

    def find(self, token: str) -> str | None:
        """Return the document of this token; None if it does not exist or has expired."""
        now = self._clock()
        for old in [each for each, (until, _) in self._kept.items() if until < now]:
            del self._kept[old]
        return self._kept[token][1] if token in self._kept else None
