"""A proxy in front of a store, which forwards HTTP/1.1 requests and causes faults according to
rules.

    with S3Server() as store, FaultProxy(store.url) as proxy:
        env = client_env(proxy.url)
        proxy.add(SLOW_DOWN, kind="part", first=2, times=3)  # the 2nd, 3rd and 4th part
        proxy.add(EndHere(client.kill, after=True), number=7)  # the 7th request of all
        ...
        assert proxy.counts == {"begin": 1, "part": 5, "complete": 1}

No fault is random: a rule selects requests by their number, or by their properties. To stop a
program at every request that it makes, first run it without a rule, and read `total`. Then run it
once for each `number` up to `total`, with a rule for this `number`. If a client sends several
requests at once, their order depends on the client.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection
from threading import Lock
from urllib.parse import unquote, urlsplit

from harness.stores import trouble
from harness.stores.kinds import kind_of
from harness.stores.loopback import Asked, Connection, LoopbackServer
from harness.stores.trouble import Trouble

_OF_THE_CONNECTION = {"connection", "transfer-encoding", "content-length", "keep-alive", "expect"}
_MAKING = {"put", "copy", "complete"}
_STORE_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """A request that the proxy received. `number` counts the requests since the last `reset`, from
    1.
    """

    number: int
    kind: str
    asked: Asked


@dataclass
class Rule:
    """A fault for some requests.

    A request matches if it has all properties of the rule that are not None. Of the matching
    requests, the fault happens to the request number `first` (from 1) and the following ones: to
    `times` requests in total, or to all if `times` is None.
    """

    trouble: Trouble
    kind: str | None = None
    number: int | None = None
    path: str | None = None
    """A part of the decoded path, such as the end of a key."""
    where: Callable[[Seen], bool] | None = None
    first: int = 1
    times: int | None = None
    fitted: int = 0
    """The number of requests that have matched so far."""

    def takes(self, seen: Seen) -> bool:
        """Return whether the fault happens to the request `seen`. If the request matches, count
        it.
        """
        fits = (
            (self.kind is None or self.kind == seen.kind)
            and (self.number is None or self.number == seen.number)
            and (self.path is None or self.path in unquote(seen.asked.path))
            and (self.where is None or self.where(seen))
        )
        self.fitted += fits
        since = self.fitted - self.first
        return fits and since >= 0 and (self.times is None or since < self.times)


class FaultProxy(LoopbackServer):
    """Forwards requests to the server at `upstream`. If several rules apply to a request, all their
    faults happen.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self._host = urlsplit(upstream).netloc
        self._lock = Lock()
        self._rules: list[Rule] = []
        self._written: list[str] = []
        self.seen: list[Seen] = []

    @property
    def total(self) -> int:
        """The number of requests since the last `reset`."""
        return len(self.seen)

    @property
    def counts(self) -> Counter[str]:
        """The number of requests of each kind (`harness.stores.kinds`) since the last `reset`."""
        return Counter(each.kind for each in list(self.seen))

    def add(
        self,
        what: Trouble,
        *,
        kind: str | None = None,
        number: int | None = None,
        path: str | None = None,
        where: Callable[[Seen], bool] | None = None,
        first: int = 1,
        times: int | None = None,
    ) -> Rule:
        """Add a rule with the fault `what` and these properties; see `Rule`."""
        rule = Rule(what, kind, number, path, where, first, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def reset(self) -> None:
        """Remove all rules, and clear the list of requests."""
        with self._lock:
            self._rules.clear()
            self.seen.clear()
            self._written.clear()

    def handle(self, asked: Asked, connection: Connection) -> None:
        with self._lock:
            seen = Seen(len(self.seen) + 1, kind_of(asked), asked)
            self.seen.append(seen)
            all_of = [rule.trouble for rule in self._rules if rule.takes(seen)]
        if not self._goes_on(all_of, connection, after=False):
            return
        for each in all_of:
            if isinstance(each, trouble.Refuse):
                connection.send(each.status, each.headers, each.body)
                return
        status, headers, body = self._forward(asked)
        if seen.kind in _MAKING and status < 300:
            with self._lock:
                self._written.append(unquote(asked.path))
        if not self._goes_on(all_of, connection, after=True):
            return
        for each in all_of:
            if isinstance(each, trouble.ForgetWrites) and seen.kind == "list":
                body = _without(body, self._written[-each.writes :] if each.writes else [])
            if isinstance(each, trouble.Garble) and each.offset < len(body):
                changed = bytearray(body)
                changed[each.offset] ^= 0xFF
                body = bytes(changed)
        self._reply(connection, (status, headers, body), all_of)

    def _goes_on(self, all_of: list[Trouble], connection: Connection, *, after: bool) -> bool:
        for each in all_of:
            if isinstance(each, trouble.Wait) and not after:
                self.stopping.wait(each.seconds)
            if isinstance(each, trouble.Call | trouble.EndHere) and each.after == after:
                each.function()
            ended = isinstance(each, trouble.EndHere) and each.after == after
            if ended or (isinstance(each, trouble.LoseReply) and after):
                connection.reset()
                return False
        return True

    def _reply(
        self,
        connection: Connection,
        answer: tuple[int, dict[str, str], bytes],
        all_of: list[Trouble],
    ) -> None:
        status, headers, body = answer
        length = int(headers.pop("content-length", len(body)))
        for each in all_of:
            if isinstance(each, trouble.ResetAfter):
                connection.send(status, headers, body[: each.body_bytes], length)
                connection.reset()
                return
            if isinstance(each, trouble.Truncate):
                connection.send(status, headers, body[: each.body_bytes], length)
                connection.cut()
                return
            if isinstance(each, trouble.Trickle):
                connection.send_head(status, headers, length)
                for start in range(0, len(body), each.piece_bytes):
                    self.stopping.wait(each.pause_seconds)
                    connection.wfile.write(body[start : start + each.piece_bytes])
                return
        connection.send(status, headers, body, length)

    def _forward(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        """Send the request to the store, and return its answer.

        The header `content-length` is kept only in the answer to a HEAD.
        """
        store = HTTPConnection(self._host, timeout=_STORE_SECONDS)
        try:
            store.putrequest(asked.method, asked.target, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                if name not in _OF_THE_CONNECTION:
                    store.putheader(name, value)
            if asked.body or asked.method in ("PUT", "POST"):
                store.putheader("Content-Length", str(len(asked.body)))
            store.putheader("Connection", "close")
            store.endheaders(asked.body or None)
            reply = store.getresponse()
            body = reply.read()
            headers = {name.lower(): value for name, value in reply.getheaders()}
            length = headers.get("content-length", "0")
            kept = {k: v for k, v in headers.items() if k not in _OF_THE_CONNECTION}
            for name in ("date", "server"):  # which are ours
                kept.pop(name, None)
            if asked.method == "HEAD":
                kept["content-length"] = length
            return reply.status, kept, body
        finally:
            store.close()


def _without(listing: bytes, paths: list[str]) -> bytes:
    """Return the XML of a listing, without the objects at `paths`."""
    text = listing.decode("utf-8")
    for tag, above in (("Contents", 2), ("Blob", 3)):  # /bucket/key, /account/container/key
        gone = {path.split("/", above)[-1] for path in paths}
        for block in re.findall(f"<{tag}>.*?</{tag}>", text, re.DOTALL):
            key = re.search(r"<(?:Key|Name)>(.*?)</", block, re.DOTALL)
            if key is not None and unescape(key[1]) in gone:
                text = text.replace(block, "")
    return text.encode()
