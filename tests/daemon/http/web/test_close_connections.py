"""Streams of events end with their session, however that ends."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.ports import free_port
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, BOB, Browser, Served, serving_page
from zerotoolsd.config.web_config import WebConfig
from zerotoolsd.http.web.sessions import SESSIONS_OF_USER


@contextmanager
def stream_of(browser: Browser) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)) as link:
        link.request("GET", "/v1/events/stream", headers=browser.own)
        answer = link.getresponse()
        assert answer.readline() == b": zerotoolsd\n"
        yield answer


def has_ended(answer: http.client.HTTPResponse) -> bool:
    try:
        return b"still here" not in answer.read()
    except (ConnectionError, http.client.IncompleteRead):
        return True


def test_a_stream_ends_with_the_command_that_ends_sessions(page: Served) -> None:
    anna, bob = page.browser(ANNA), page.browser(BOB)
    with stream_of(anna) as cut, stream_of(bob) as whole:
        assert page.page.end(ANNA) == 1
        assert has_ended(cut)
        assert page.page.end(BOB) == 1
        assert has_ended(whole)


def test_a_stream_ends_as_its_user_logs_out(page: Served) -> None:
    first, second = page.browser(), page.browser()
    with stream_of(first) as cut:
        assert first.post("/session/end").status == 200
        assert has_ended(cut)
    assert second.get("/session").status == 200


def test_a_stream_alone_does_not_keep_a_session(service: FakeService, tmp_path: Path) -> None:
    config = WebConfig(session="1s", port=free_port())
    with serving_page(service, tmp_path / "page", config) as page:
        browser = page.browser()
        with stream_of(browser) as cut:
            assert has_ended(cut)
        assert browser.get("/session").status == 401


def test_a_stream_ends_where_newer_sessions_take_its_place(page: Served) -> None:
    with stream_of(page.browser()) as cut:
        for _ in range(SESSIONS_OF_USER):
            page.browser()
        assert has_ended(cut)
