"""The interface between the API and the page for browsers."""

from __future__ import annotations

from typing import Any, Protocol

from zerotoolsd.interface.api_errors import Conflict


class JobPage(Protocol):
    """Links to the page, and their end."""

    async def link(self, uid: int) -> dict[str, Any]:
        """Return `{"url", "port", "expires_seconds"}`: a link for this user that works once.

        Raises Conflict (this daemon has no page), Unavailable (no port is free).
        """

    def end(self, uid: int) -> int:
        """End all sessions of this user; how many there were."""


class NoPage:
    """A daemon without one."""

    async def link(self, uid: int) -> dict[str, Any]:
        """Raise Conflict; see `JobPage`."""
        raise Conflict("this daemon has no page for browsers")

    def end(self, uid: int) -> int:
        """Return 0; see `JobPage`."""
        return 0
