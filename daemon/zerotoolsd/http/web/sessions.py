"""Sessions of the page: one-time links, and the browser sessions that they become.

    zerotools web         the Unix socket identifies the uid, which gets a link that works once
    POST /link/TOKEN      the link is used up, and the browser gets a cookie of that uid's session,
                          and the page the secrets of that session
    GET /hello?...        the daemon proves to a page that lost it that it is the same one

A cookie alone opens nothing: browsers send it to every port of the address, so that other users'
programs receive it. The page also sends `WebSession.secret`, and only to this port.

Only digests of cookies are kept. Sessions survive the daemon, in a file of its state directory, so
that an open page continues after an upgrade; links do not. A page that lost the daemon sends no
cookie before `proof` has shown that the listener has the key of its session: another user of the
machine could have taken the port.
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
"""Limits of one user at a time: the oldest are removed."""
SAVE_SECONDS = 600.0
"""Largest age of the stored time of a session's last use, in seconds."""
LEAST_LEFT = 1.0
LARGEST_FILE = 16 << 20
_BYTES = 32


@dataclass(frozen=True)
class WebSession:
    """A browser of the user `uid`. `key` is only for the page: `secret` and `proof` are derived
    from it. Times are in seconds since 1970."""

    digest: str
    uid: int
    key: str
    created: float
    used: float

    @property
    def id(self) -> str:
        """Names the session, and opens nothing."""
        return hashlib.sha256(f"id:{self.digest}".encode()).hexdigest()[:32]

    @property
    def secret(self) -> str:
        """The header of every request of the page, which no other port and no other page gets."""
        return self._mac("page")

    def proof(self, nonce: str) -> str:
        """Return the proof that only this daemon can give to a page of this session."""
        return self._mac(f"proof:{nonce}")

    def _mac(self, text: str) -> str:
        return hmac.new(bytes.fromhex(self.key), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class _Link:
    uid: int
    until: float


def digest_of(token: str) -> str:
    """Return the digest of a secret, which is stored instead of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class WebSessions:
    """The sessions in `path`, which end `idle_seconds` after their last use; `clock` is the
    calendar. `port` is the last port of the page. `realm` names its cookie, because browsers send
    cookies of one address to all of its ports."""

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
        """Return a token that becomes a session of this user, once, within `LINK_SECONDS`."""
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
        """Use up a link; return a new cookie and its session.

        Returns None if the link does not exist, was used, or is too old.
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
        """Return the sessions of a user."""
        return [each for each in self.live() if each.uid == uid]

    def live(self) -> list[WebSession]:
        """Return the sessions that have not ended."""
        now = self._clock()
        old = [each.digest for each in self._sessions.values() if now - each.used >= self._idle]
        for digest in old:
            self._drop(digest)
        return list(self._sessions.values())

    def known(self, cookies: Iterable[str]) -> list[WebSession]:
        """Return the sessions of these cookies, which the sender need not own."""
        now = self._clock()
        found = (self._sessions.get(digest_of(each)) for each in cookies)
        return [each for each in found if each is not None and now - each.used < self._idle]

    def find(self, cookies: Iterable[str], secret: str) -> WebSession | None:
        """Return the session of one of these cookies that has this secret, and record its use."""
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
        """Return the session with this `id`."""
        return next((each for each in self.live() if each.id == session_id), None)

    def end(self, session: WebSession) -> None:
        """Let the cookie open nothing any more."""
        if self._drop(session.digest):
            self.save()

    def end_all(self, uid: int | None = None) -> int:
        """End all sessions and links of a user, or of all; how many sessions there were."""
        gone = [each for each in self._sessions.values() if uid in (None, each.uid)]
        for each in gone:
            self._drop(each.digest)
        self._links = {d: link for d, link in self._links.items() if uid not in (None, link.uid)}
        self.save()
        return len(gone)

    def seconds_left(self, digest: str) -> float:
        """Return the seconds until an unused session ends; 0 if it has ended.

        If it is due now, this call ends it.
        """
        self.live()
        found = self._sessions.get(digest)
        return 0.0 if found is None else max(LEAST_LEFT, found.used + self._idle - self._clock())

    def watch(self, digest: str, ended: Callable[[], None]) -> None:
        """Call `ended` when the session ends, until `unwatch`."""
        self._watchers.setdefault(digest, []).append(ended)

    def unwatch(self, digest: str, ended: Callable[[], None]) -> None:
        """Call it no more."""
        left = [each for each in self._watchers.pop(digest, []) if each is not ended]
        if left:
            self._watchers[digest] = left

    def _drop(self, digest: str) -> bool:
        found = self._sessions.pop(digest, None)
        for ended in self._watchers.pop(digest, []):
            ended()
        return found is not None

    def save(self) -> None:
        """Write the file; if that fails, sessions end with the daemon."""
        self._saved = self._clock()
        tree = {
            "port": self.port,
            "realm": self.realm,
            "sessions": [asdict(each) for each in self.live()],
        }
        try:
            write_json(self._path, tree)
        except OSError as error:
            log.warning("sessions of the page cannot be kept (%s): %s", self._path, error)

    def _load(self) -> None:
        try:
            tree = read_json(self._path, LARGEST_FILE)
            if tree is None:
                return
            port, realm = tree["port"], str(tree["realm"])
            sessions = [_session(each) for each in tree["sessions"]]
            if not (port is None or type(port) is int) or not realm.isalnum():
                raise ValueError("port or realm is wrong")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("sessions of the page are lost (%s): %s", self._path, error)
            return
        self.port, self.realm = port, realm
        self._sessions = {each.digest: each for each in sessions}


def _is_same(given: bytes, secret: str) -> bool:
    return hmac.compare_digest(given, secret.encode())


def _is_between(now: float, link: _Link) -> bool:
    """Return whether the link is valid, also after the calendar was set back."""
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
