"""Sessions of the page: one-time links, and the browser sessions that begin with them.

    zerotools web         the Unix socket identifies the user, who gets a link that works once
    POST /link/TOKEN      uses the link up: the browser gets the cookie of a new session of that
                          uid, and the page gets the secrets of that session
    GET /hello?...        the daemon proves to a page that lost its connection that it is the same
                          daemon

A cookie alone allows nothing: browsers send it to every port of the address, so that other users'
programs receive it. The page also sends `WebSession.secret`, and only to this port.

Only digests of cookies are stored. Sessions are kept in a file of the state directory when the
daemon ends, so that an open page continues after an upgrade; links are not kept. A page that has
lost its connection first asks the daemon at the port for a `proof` that it has the key of the
page's session, and only then sends its cookie. Otherwise another user of the machine could take the
port and get the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable_files import read_json, write_json

log = logging.getLogger(__name__)

FILE = "web-sessions.json"
LINK_SECONDS = 120.0
LINKS_OF_USER, SESSIONS_OF_USER, MOST_USERS = 8, 32, 4096
"""The largest numbers of links and sessions of one user, and of the links of all users.

The oldest are removed first.
"""
SAVE_SECONDS = 600.0
"""The longest time, in seconds, before the last use of a session is stored again."""
LEAST_LEFT = 1.0
LARGEST_FILE = 16 << 20
_BYTES = 32


@dataclass(frozen=True)
class WebSession:
    """A browser session of the user `uid`. Times are in seconds since 1970.

    `key` is sent only to the page; `secret` and `proof` are derived from it.
    """

    digest: str
    uid: int
    key: str
    created: float
    used: float

    @property
    def id(self) -> str:
        """The public name of the session, which gives no access."""
        return hashlib.sha256(f"id:{self.digest}".encode()).hexdigest()[:32]

    @property
    def secret(self) -> str:
        """The header value that the page sends with every request.

        No other port and no other page gets it.
        """
        return self._mac("page")

    def proof(self, nonce: str) -> str:
        """Return the proof for `nonce` that only this daemon can give to a page of this session."""
        return self._mac(f"proof:{nonce}")

    def _mac(self, text: str) -> str:
        return hmac.new(bytes.fromhex(self.key), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class _Link:
    uid: int
    until: float


def digest_of(token: str) -> str:
    """Return the digest of a secret. The digest is stored, not the secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class WebSessions:
    """The sessions of the page, stored in the file `path`. A session ends `idle_seconds` after its
    last use.

    `clock` returns the time in seconds since 1970. `port` is the port that the page had last.
    `realm` is a part of the cookie's name, because browsers send the cookies of an address to all
    of its ports.
    """

    def __init__(
        self, path: Path, idle_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._idle = idle_seconds
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._sessions: dict[str, WebSession] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        self.port: int | None = None
        self.realm = secrets.token_hex(4)
        self._saved = clock()
        self._load()

    def link(self, uid: int) -> str:
        """Return a token for a link.

        Within `LINK_SECONDS`, the token can be exchanged once for a session of user `uid`.
        """
        now = self._clock()
        live = {each: link for each, link in self._links.items() if _is_between(now, link)}
        own = [each for each, link in live.items() if link.uid == uid]
        for each in own[: max(0, len(own) + 1 - LINKS_OF_USER)]:
            del live[each]
        token = secrets.token_urlsafe(_BYTES)
        live[digest_of(token)] = _Link(uid, now + LINK_SECONDS)
        self._links = dict(list(live.items())[-MOST_USERS:])
        return token

    def redeem(self, token: str) -> tuple[str, WebSession] | None:
        """Exchange the token of a link for a new session. Return the cookie and the session.

        Return None if the link does not exist, was used before, or is too old.
        """
        link = self._links.pop(digest_of(token), None)
        now = self._clock()
        if link is None or not _is_between(now, link):
            return None
        cookie = secrets.token_urlsafe(_BYTES)
        session = WebSession(digest_of(cookie), link.uid, secrets.token_hex(_BYTES), now, now)
        own = sorted(self.of(link.uid), key=lambda each: each.used)
        for each in own[: max(0, len(own) + 1 - SESSIONS_OF_USER)]:
            self._drop(each.digest)
        self._sessions[session.digest] = session
        self.save()
        return cookie, session

    def of(self, uid: int) -> list[WebSession]:
        """Return the sessions of user `uid`."""
        return [each for each in self.live() if each.uid == uid]

    def live(self) -> list[WebSession]:
        """Return the sessions that have not ended."""
        now = self._clock()
        old = [each.digest for each in self._sessions.values() if now - each.used >= self._idle]
        for digest in old:
            self._drop(digest)
        return list(self._sessions.values())

    def known(self, cookies: Iterable[str]) -> list[WebSession]:
        """Return the sessions of these cookies. The sender of the cookies may be another user."""
        now = self._clock()
        found = (self._sessions.get(digest_of(each)) for each in cookies)
        return [each for each in found if each is not None and now - each.used < self._idle]

    def find(self, cookies: Iterable[str], secret: str) -> WebSession | None:
        """Return the session of one of these cookies that also has this `secret`, and record its
        use; None if there is no such session.
        """
        given = secret.encode("utf-8", "surrogateescape")
        matching = (each for each in self.known(cookies) if _is_same(given, each.secret))
        if (found := next(matching, None)) is None:
            return None
        now = self._clock()
        self._sessions[found.digest] = replace(found, used=now)
        if not 0 <= now - self._saved < SAVE_SECONDS:
            self.save()
        return found

    def named(self, session_id: str) -> WebSession | None:
        """Return the session with this `id`; None if it does not exist."""
        return next((each for each in self.live() if each.id == session_id), None)

    def end(self, session: WebSession) -> None:
        """End a session, so that its cookie gives no access any more."""
        if self._drop(session.digest):
            self.save()

    def end_all(self, uid: int | None = None) -> int:
        """End the sessions and links of user `uid` (None: all). Return the number of sessions."""
        gone = [each for each in self._sessions.values() if uid in (None, each.uid)]
        for each in gone:
            self._drop(each.digest)
        self._links = {d: link for d, link in self._links.items() if uid not in (None, link.uid)}
        self.save()
        return len(gone)

    def seconds_left(self, digest: str) -> float:
        """Return the seconds until the session expires if it is not used; 0 if it has ended.

        If the session has expired by now, this call ends it.
        """
        self.live()
        found = self._sessions.get(digest)
        return 0.0 if found is None else max(LEAST_LEFT, found.used + self._idle - self._clock())

    def watch(self, digest: str, ended: Callable[[], None]) -> None:
        """Call `ended` when the session ends, unless `unwatch` is called before."""
        self._watchers.setdefault(digest, []).append(ended)

    def unwatch(self, digest: str, ended: Callable[[], None]) -> None:
        """Do not call `ended` any more when the session ends."""
        left = [each for each in self._watchers.pop(digest, []) if each is not ended]
        if left:
            self._watchers[digest] = left

    def _drop(self, digest: str) -> bool:
        found = self._sessions.pop(digest, None)
        for ended in self._watchers.pop(digest, []):
            ended()
        return found is not None

    def save(self) -> None:
        """Write the sessions to the file. If that fails, they end together with the daemon."""
        self._saved = self._clock()
        tree = {
            "port": self.port,
            "realm": self.realm,
            "sessions": [asdict(each) for each in self.live()],
        }
        try:
            write_json(self._path, tree)
        except OSError as error:
            log.warning("browser sessions cannot be stored (%s): %s", self._path, error)

    def _load(self) -> None:
        try:
            tree = read_json(self._path, LARGEST_FILE)
            if tree is None:
                return
            port, realm = tree["port"], str(tree["realm"])
            sessions = [_session(each) for each in tree["sessions"]]
            if not (port is None or type(port) is int) or not realm.isalnum():
                raise ValueError("the port or the realm in it is not valid")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("browser sessions cannot be restored (%s): %s", self._path, error)
            return
        self.port, self.realm = port, realm
        self._sessions = {each.digest: each for each in sessions}


def _is_same(given: bytes, secret: str) -> bool:
    return hmac.compare_digest(given, secret.encode())


def _is_between(now: float, link: _Link) -> bool:
    """Return whether the link is valid at `now`. Setting the clock back does not prolong it."""
    return link.until - LINK_SECONDS <= now < link.until


def _session(tree: Any) -> WebSession:
    found = WebSession(
        str(tree["digest"]),
        int(tree["uid"]),
        str(tree["key"]),
        float(tree["created"]),
        float(tree["used"]),
    )
    bytes.fromhex(found.key)
    return found
