"""Keeps pictures of checkpoints that a page opens, each at an address that nobody can guess."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

KEPT_SECONDS, MOST_KEPT = 600.0, 32
HEADERS = {
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
