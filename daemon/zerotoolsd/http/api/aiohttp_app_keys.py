"""The keys with which handlers find the service, the page and the rights in the application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from zerotoolsd.http.api.bearer_tokens import BearerTokens
from zerotoolsd.http.api.request_limits import ConcurrencyLimit
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Action, Rights

TOKENS: web.AppKey[BearerTokens] = web.AppKey("tokens")
SERVICE: web.AppKey[JobRequests] = web.AppKey("service")
PAGE: web.AppKey[JobPage] = web.AppKey("page")
PEOPLE: web.AppKey[UserDirectory] = web.AppKey("people")
CONCURRENCY_LIMIT: web.AppKey[ConcurrencyLimit] = web.AppKey("concurrency_limit")
RIGHTS: web.AppKey[Rights] = web.AppKey("rights")
ACTIONS: web.AppKey[Mapping[Any, Action]] = web.AppKey("actions")
"""Key of the mapping from each route's handler to its `Action`."""


class JobPage(Protocol):
    """Makes links to the web page, and ends the browser sessions of users."""

    async def link(self, uid: int) -> dict[str, Any]:
        """Return `{"url", "port", "expires_seconds"}`: a link for this user to the web page. The
        link works once.

        Raises Conflict (this daemon has no page), Unavailable (no port is free).
        """

    def end(self, uid: int) -> int:
        """End all browser sessions of this user, and return their number."""


class NoPage:
    """The `JobPage` of a daemon without a page."""

    async def link(self, uid: int) -> dict[str, Any]:
        """Raise Conflict; see `JobPage`."""
        raise Conflict("this daemon has no page for browsers")

    def end(self, uid: int) -> int:
        """Return 0, because there are no sessions; see `JobPage`."""
        return 0
