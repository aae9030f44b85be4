"""The page's real application on a real port, in a thread of its own, and what asks it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp.typedefs import Middleware

from harness.ports import free_port
from tests.daemon.http.api.fakes import FakeService
from zerotoolsd.config.config_tables import WebConfig
from zerotoolsd.http.web.page_gate import OWNER_HEADER, SECRET_HEADER
from zerotoolsd.http.web.page_server import WebPage
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.users.rights import Caller, Rights

ANNA, BOB, OWN = 1001, 1002, 7
"""Two users, and that of the daemon."""


class Directory(UserDirectory):
    """Users whose groups a test changes, by uid."""

    def __init__(self, groups: Mapping[int, Collection[str]]) -> None:
        super().__init__()
        self.groups = dict(groups)

    async def find(self, uid: int) -> Caller:
        name = {ANNA: "anna", BOB: "bob"}.get(uid)
        return Caller(uid=uid, name=name, groups=frozenset(self.groups.get(uid, ())))


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Browser:
    """Sends what it is told: `cookie` and `secrets` are those of its session."""

    port: int
    cookie: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def me(self) -> Any:
        """Whose session it is."""
        return self.get("/session").json

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def own(self) -> dict[str, str]:
        """What the page sends with every request."""
        found = {"Cookie": self.cookie, SECRET_HEADER: self.secrets.get("secret")}
        return {name: value for name, value in found.items() if value}

    def follow(self, target: str) -> Answer:
        """As the page of a link does it."""
        return self.send("POST", target, ("Origin", self.origin), body=b"{}")

    def send(
        self, method: str, path: str, *headers: tuple[str, str], body: bytes | None = None
    ) -> Answer:
        """With these headers alone; without one of them, `Host` is right."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            link.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            names = {name.lower() for name, _ in headers}
            usual = [("Host", f"127.0.0.1:{self.port}")] if "host" not in names else []
            for name, value in [*usual, *headers]:
                if value:
                    link.putheader(name, value)
            if body is not None:
                link.putheader("Content-Length", str(len(body)))
            link.endheaders(body)
            answer = link.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            link.close()

    def get(self, path: str, *headers: tuple[str, str]) -> Answer:
        """As the page does it."""
        return self.send(
            "GET", path, *self.own.items(), ("Sec-Fetch-Site", "same-origin"), *headers
        )

    def post(
        self,
        path: str,
        *,
        origin: str | None = None,
        secret: str | None = None,
        owner: int | str | None = None,
        body: Any = None,
    ) -> Answer:
        """As the page does it, or otherwise; `""` leaves a header out."""
        headers = {**self.own, "Origin": self.origin if origin is None else origin}
        if secret is not None:
            headers[SECRET_HEADER] = secret
        if owner is not None:
            headers[OWNER_HEADER] = str(owner)
        data = json.dumps(body or {}).encode()
        return self.send("POST", path, *headers.items(), body=data)


class Served:
    """A page that listens, and ways into it."""

    def __init__(self, page: WebPage, loop: asyncio.AbstractEventLoop) -> None:
        self.page = page
        self._loop = loop

    def link(self, uid: int) -> dict[str, Any]:
        """As the Unix socket gives one to this user."""
        return asyncio.run_coroutine_threadsafe(self.page.link(uid), self._loop).result(10)

    def stranger(self) -> Browser:
        """A browser without a session."""
        return Browser(int(self.link(OWN)["port"]))

    def browser(self, uid: int = ANNA) -> Browser:
        """A browser that has followed a link of this user."""
        link = self.link(uid)
        browser = Browser(int(link["port"]))
        answer = browser.follow("/link/" + link["url"].rpartition("/")[2])
        assert answer.status == 201
        browser.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        browser.secrets = answer.json
        return browser


@contextmanager
def serving_page(
    service: FakeService,
    state: Path,
    config: WebConfig | None = None,
    gate: Middleware | None = None,
    administrators: Collection[str | int] = (),
    people: UserDirectory | None = None,
) -> Iterator[Served]:
    """Serve a page inside the block. It is a daemon's of uid `OWN`, at a port of its own."""
    state.mkdir(exist_ok=True)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    page = WebPage(
        service,
        config or WebConfig(port=free_port()),
        state,
        Rights(administrators, own=OWN),
        people or UserDirectory(),
        gate,
    )

    async def serve() -> None:
        await page.start()
        ready.set()
        await stop.wait()
        await page.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield Served(page, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
