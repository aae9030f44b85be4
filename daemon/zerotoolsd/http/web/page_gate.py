"""The checks that every request of a browser passes before its handler.

The page is at 127.0.0.1 of this machine. Any program, any web page that the user has open, and any
other user can send requests to this address, too. So these are checked:

Host            It must name this machine. If another site's name resolved to this machine (DNS
                rebinding), that site would have the same origin as the page.
Sec-Fetch-Site  If the browser sends it, it must show that no other site or port sent the request.
Origin          For a request that changes something, it must be the origin of this page.
cookie, header  They identify the session and its page. Browsers send the cookie to every port of
                this address, but the header only to this port. Without both, a request can only
                begin a session.

A session has the rights of its user at the Unix socket, because the same function decides
(`http.api.authorize`). So an administrator changes jobs of other users here, too. Such a request
names the owner of the job (`OWNER_HEADER`), which the user has confirmed.

These rights add nothing to a stolen session: it can submit jobs, which run as its user and can
connect to the Unix socket.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.aiohttp_app_keys import PEOPLE, SERVICE
from zerotoolsd.http.api.authorize import decide, turn_of
from zerotoolsd.http.api.connection_limits import handling
from zerotoolsd.http.api.openapi.openapi_document import query_keys
from zerotoolsd.http.api.request_limits import RateLimit
from zerotoolsd.http.api.responses import problem_response
from zerotoolsd.http.web.sessions import WebSession, WebSessions
from zerotoolsd.interface.api_types import Forbidden, Unauthorized
from zerotoolsd.users.rights import user_text

SECRET_HEADER = "Zerotools-Page"
OWNER_HEADER = "Zerotools-Owner"
"""The uid of the owner of the job that a request changes, as the page showed it to the user."""
SAFE = ("GET", "HEAD")
STRANGERS_PER_SECOND, STRANGERS_AT_ONCE = 50.0, 200.0
"""Limits for all requests without a session together: per second in the long run, and in a
burst.
"""
PER_SECOND, AT_ONCE = 100.0, 1000.0
"""Limits for requests of one user's pages; and, separately, of clients that only have a user's
cookie."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page_gate(users: RateLimit | None = None, strangers: RateLimit | None = None) -> Middleware:
    """Return the middleware that checks browser requests. `users` limits the requests of each user,
    and `strangers` limits the requests without a session.
    """
    rate = users or RateLimit(PER_SECOND, AT_ONCE)
    rate_of_cookies = RateLimit(PER_SECOND, AT_ONCE)
    rate_of_strangers = strangers or RateLimit(STRANGERS_PER_SECOND, STRANGERS_AT_ONCE)

    @web.middleware
    async def check_browser_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        with handling(request):
            request_validation.refuse_encoded(request)
            refuse_other_sites(request)
            refuse_other_origins(request)
            now = asyncio.get_running_loop().time()
            session = identify(request)
            if session is not None:
                wait = rate.wait_for(session.uid, now)
            elif request[COOKIES]:
                wait = rate_of_cookies.wait_for(request[COOKIES][0].uid, now)
            else:
                wait = rate_of_strangers.wait_for(0, now)
            if wait > 0:
                return _too_often(wait)
            if request.match_info.handler in request.app[OPEN]:
                return await handler(request)
            return await _with_session(request, session, handler)

    return check_browser_request


@web.middleware
async def close_to_strangers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Close a connection without a session after its response, because anyone can open many."""
    answer = await handler(request)
    if not request.get(COOKIES):
        answer.force_close()
    return answer


def _too_often(wait: float) -> web.Response:
    answer = problem_response(429, "rate_limited", "too many requests; try again in a moment")
    answer.headers["Retry-After"] = str(math.ceil(wait))
    return answer


async def _with_session(
    request: web.Request, session: WebSession | None, handler: Handler
) -> web.StreamResponse:
    if session is None:
        raise Unauthorized("this page needs a session: type `zerotools web` for a new link")
    resource = request.match_info.route.resource
    if request.query_string and resource is not None:
        request_validation.check_query(
            request.query, query_keys(resource.canonical, request.method)
        )
    if resource is None or not resource.canonical.startswith("/v1/"):
        return await handler(request)
    await decide(request, session.uid)
    if request.method in SAFE:
        with close_at_session_end(request, request.app[SESSIONS], session):
            return await handler(request)
    if "id" in request.match_info:
        await _refuse_unnamed_owner(request, session)
    async with turn_of(request):
        return await handler(request)


def refuse_other_sites(request: web.Request) -> None:
    """Raise Forbidden if the request is not sent by a page of this address."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not is_local(hosts[0]):
        raise Forbidden("this page answers only at 127.0.0.1 and localhost")
    sites = request.headers.getall("Sec-Fetch-Site", [])
    is_visit = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    if any(site not in ("same-origin", "none") for site in sites) and not is_visit:
        raise Forbidden("another web page sent this request: it is not answered")


def is_local(host: str) -> bool:
    """Return whether the header `Host` names this machine; any port is allowed, as for a tunnel."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    if port and not (port.isascii() and port.isdigit()):
        return False
    return name.lower() in ("127.0.0.1", "localhost", "[::1]")


def refuse_other_origins(request: web.Request) -> None:
    """Raise Forbidden if the request changes something and does not come from this page."""
    origins = request.headers.getall("Origin", [])
    if request.method not in SAFE and origins != [f"http://{request.headers['Host']}"]:
        raise Forbidden("another web page sent this request, and it was refused")


def identify(request: web.Request) -> WebSession | None:
    """Return the session of the page that sent the request, and store it in the request as
    `SESSION`. Return None if the page has no session.

    The sessions of all cookies of the request are stored as `COOKIES`. They give no rights, because
    other programs may have these cookies too.
    """
    sessions, cookies = request.app[SESSIONS], cookies_of(request)
    request[COOKIES] = sessions.known(cookies)
    given = request.headers.getall(SECRET_HEADER, [])
    found = sessions.find(cookies, given[0]) if len(given) == 1 else None
    if found is not None:
        request[SESSION] = found
    return found


async def _refuse_unnamed_owner(request: web.Request, session: WebSession) -> None:
    """Raise Forbidden if the request names another owner of the job than the job has, or changes a
    job of another user without naming its owner.
    """
    job_id = request_validation.job_id(request)
    owner, named = request.app[SERVICE].owner(job_id), request.headers.getall(OWNER_HEADER, [])
    if named == [str(owner)] or (not named and owner == session.uid):
        return
    whose = user_text(owner, (await request.app[PEOPLE].find(owner)).name)
    raise Forbidden(
        f"job {job_id} belongs to {whose}, which the page did not show: load the page again, and "
        "confirm the change"
    )


@contextmanager
def close_at_session_end(
    request: web.Request, sessions: WebSessions, session: WebSession
) -> Iterator[None]:
    """Close the connection of a read request if its session ends while the context is open.

    A session is ended by its user or by the daemon, or ends after a long time without other
    requests.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left = sessions.seconds_left(session.digest)
        if left > 0:
            timer = loop.call_later(left, look)

    def hang_up() -> None:
        if request.transport is not None:
            request.transport.abort()

    sessions.watch(session.digest, hang_up)
    look()
    try:
        yield
    finally:
        sessions.unwatch(session.digest, hang_up)
        if timer is not None:
            timer.cancel()


SESSIONS: web.AppKey[WebSessions] = web.AppKey("sessions")
OPEN: web.AppKey[Collection[Any]] = web.AppKey("open")
"""The handlers of requests that need no session."""

MOST_COOKIES = 180
"""The largest number of cookies that are checked.

Browsers keep at most 180 for one address, and each is hashed before the caller is known.
"""

# aiohttp before 3.14 has text for its keys, and since then it warns of that.
_KEY = getattr(web, "RequestKey", None)
SESSION: Any = "zerotoolsd.session" if _KEY is None else _KEY("zerotoolsd.session", WebSession)
"""Key of the request for the session of the page that sent it."""
COOKIES: Any = "zerotoolsd.cookies" if _KEY is None else _KEY("zerotoolsd.cookies", list)
"""Key of the request for the sessions of its cookies, which another program may have received."""


def cookie_name(app: web.Application, session: WebSession) -> str:
    """Return the name of the cookie for one daemon and one session.

    The name contains both, because browsers send the cookies of an address to all of its ports, and
    because a link from another user must not replace the session of another tab.
    """
    return f"{_prefix(app)}{session.id[:8]}"


def cookies_of(request: web.Request) -> list[str]:
    """Return the values of the cookies in our format, at most `MOST_COOKIES`.

    Servers at other ports can set cookies of the same name. Such cookies do not hide the cookies of
    this page.
    """
    prefix = _prefix(request.app)
    pairs = [
        each.strip() for line in request.headers.getall("Cookie", []) for each in line.split(";")
    ]
    own = (pair.partition("=")[2] for pair in pairs if pair.startswith(prefix))
    return list(islice(own, MOST_COOKIES))


def _prefix(app: web.Application) -> str:
    return f"zerotools-{app[SESSIONS].realm}-"
