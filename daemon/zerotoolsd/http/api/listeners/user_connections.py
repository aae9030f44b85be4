"""Limits how many connections each user may have, so that one who leaks them leaves some for
others."""

from __future__ import annotations

import os
import socket
from collections import Counter

from zerotoolsd.http.api.authorization.peer import uid_of

EIGHTH = 8
LEAST = 4


class UserConnections:
    """The shares of `most` connections: an eighth for each user, and an eighth that is reserved for
    root and the daemon's user, who have no limit. The user of a TCP connection is unknown when it
    is made: all of those together count as two users."""

    def __init__(self, most: int, own: int | None = None) -> None:
        self._own = os.geteuid() if own is None else own
        self._each = max(LEAST, most // EIGHTH)
        self._others = max(LEAST, most - self._each)
        self._taken: Counter[int | None] = Counter()

    def enter(self, link: socket.socket) -> tuple[int | None, str | None]:
        """Count a connection; return its uid, and why it is refused (None: it is counted)."""
        uid = uid_of(link)
        if uid in (0, self._own):
            return uid, None
        each = self._each if uid is not None else 2 * self._each
        if self._taken[uid] >= each:
            who = "clients by TCP have" if uid is None else f"uid {uid} has"
            return uid, f"{who} {each} connections already"
        if self._taken.total() >= self._others:
            return uid, f"users have {self._others} connections already"
        self._taken[uid] += 1
        return uid, None

    def leave(self, uid: int | None) -> None:
        """Remove a closed connection from the count."""
        if uid in (0, self._own):
            return
        self._taken[uid] -= 1
        if self._taken[uid] <= 0:
            del self._taken[uid]
