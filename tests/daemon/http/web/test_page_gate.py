"""What the page refuses: every way in that is none."""

from __future__ import annotations

import gzip
import http.client
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest

from harness.ports import free_port
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import (
    ANNA,
    BOB,
    OWN,
    Browser,
    Directory,
    Served,
    serving_page,
)
from zerotoolsd.config.config_tables import WebConfig
from zerotoolsd.http.api.request_limits import RateLimit
from zerotoolsd.http.api.request_validation import LARGEST_BODY
from zerotoolsd.http.api.routes import ROUTES
from zerotoolsd.http.web.page_app import CHANGES, HEADERS, OF_API
from zerotoolsd.http.web.page_gate import MOST_COOKIES, OWNER_HEADER, is_local, page_gate
from zerotoolsd.http.web.sessions import SESSIONS_OF_USER
from zerotoolsd.interface.api_types import Event
from zerotoolsd.users.rights import Caller, Owner, Rights

OTHER_HOSTS = (
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example",
    "evil.example#localhost:{port}",
    "localhost:{port}:1",
    "127.0.0.1:x",
    "127.0.0.2:{port}",
    "0.0.0.0:{port}",
    "[::]:{port}",
    "user@127.0.0.1:{port}",
    "",
)


def targets() -> list[str]:
    return [path.replace("{id}", "1") for path in sorted(OF_API)]


def test_without_a_session_there_is_nothing(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    stranger = page.stranger()
    for target in [*targets(), "/session"]:
        answer = stranger.get(target)
        assert (answer.status, answer.json["code"]) == (401, "unauthorized"), target
        assert answer.headers["Connection"] == "close"
    assert b"zerotools web" in stranger.get("/").body
    assert stranger.get("/").status == 401
    for path in sorted(CHANGES):
        stranger.secrets = {"secret": "x"}
        assert stranger.post(path.replace("{id}", "1")).status == 401
    assert service.views[1].state == "queued"


def test_a_cookie_that_is_none(page: Served) -> None:
    browser = page.browser()
    name, _, value = str(browser.cookie).partition("=")
    for other in (f"{name}=", f"{name}={value[:-1]}", f"zerotools={value}", f"x{name}={value}"):
        browser.cookie = other
        assert browser.get("/v1/jobs").status == 401, other


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_another_host_is_not_answered(page: Served, host: str) -> None:
    browser = page.browser()
    name = host.format(port=browser.port)
    for path in ("/", "/v1/jobs", "/page/style.css", "/hello", "/session"):
        answer = browser.send("GET", path, ("Host", name), *browser.own.items())
        assert answer.status in (400, 403), (host, path)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8730", True),
        ("LOCALHOST:9000", True),
        ("[::1]:8730", True),
        ("[::1]", True),
        ("::1", False),
        ("localhost:", True),
        ("localhost:٣", False),
        ("localhost.", False),
    ],
)
def test_which_names_are_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_two_hosts_are_none(page: Served) -> None:
    browser = page.browser()
    right = ("Host", f"127.0.0.1:{browser.port}")
    answer = browser.send("GET", "/session", right, right, *browser.own.items())
    assert answer.status in (400, 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_requests_of_other_sites_and_ports_are_not_answered(page: Served, site: str) -> None:
    browser = page.browser()
    headers = (*browser.own.items(), ("Sec-Fetch-Site", site))
    for path in ("/v1/jobs", "/session", "/page/js/main.js"):
        assert browser.send("GET", path, *headers).status == 403
    visit = ("Sec-Fetch-Mode", "navigate")
    assert browser.send("GET", "/", *headers, visit).status == 200


@pytest.mark.parametrize(
    ("origin", "secret", "status"),
    [
        ("", None, 403),
        ("null", None, 403),
        ("http://evil.example", None, 403),
        ("http://127.0.0.1:1", None, 403),
        ("https://127.0.0.1:{port}", None, 403),
        ("http://localhost:{port}", None, 403),
        (None, "", 401),
        (None, "0" * 64, 401),
        (None, "\xe9", 401),
    ],
)
def test_a_forged_change_changes_nothing(
    page: Served, service: FakeService, origin: str | None, secret: str | None, status: int
) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    given = None if origin is None else origin.format(port=browser.port)
    for path in (*(each.replace("{id}", "1") for each in sorted(CHANGES)), "/session/end"):
        assert browser.post(path, origin=given, secret=secret).status == status, path
    assert service.views[1].state == "queued"
    assert (service.uids, len(service.views)) == ([], 1)
    assert browser.get("/v1/jobs").status == 200


def test_the_secret_of_another_session_is_none(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser, other = page.browser(), page.browser()
    assert browser.post("/v1/jobs/1/cancel", secret=other.secrets["secret"]).status == 401
    assert browser.post("/v1/jobs/1/cancel").status == 202


def test_a_cookie_that_another_port_was_sent_opens_nothing(
    page: Served, service: FakeService
) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    thief = Browser(browser.port, browser.cookie)
    for target in [*targets(), "/session"]:
        assert thief.get(target).status == 401, target
    for path in sorted(CHANGES):
        assert thief.post(path.replace("{id}", "1")).status == 401
    assert not set(browser.secrets.values()) & set(re.findall(r"\w+", thief.get("/").body.decode()))


def test_a_thief_of_a_cookie_neither_keeps_the_session_alive_nor_slows_it_down(
    service: FakeService, tmp_path: Path
) -> None:
    gate = page_gate(users=RateLimit(0.001, 5))
    with serving_page(service, tmp_path / "page", gate=gate) as page:
        browser = page.browser()
        thief = Browser(browser.port, browser.cookie)
        assert [thief.get("/v1/health").status for _ in range(9)] == [401] * 9
        assert browser.get("/v1/health").status == 200


def test_cookies_that_another_port_has_set_hide_none(page: Served) -> None:
    browser = page.browser()
    name = str(browser.cookie).partition("=")[0]
    own = browser.cookie
    for planted in (f"{name}=x; {own}", f'{name}="x; {own}', f"{own}; {name}=x", f"=; ;{own}"):
        browser.cookie = planted
        assert browser.get("/session").status == 200, planted


def test_another_link_in_the_same_browser_leaves_an_open_page_as_it_is(page: Served) -> None:
    anna, bob = page.browser(ANNA), page.browser(BOB)
    anna.cookie = bob.cookie = f"{anna.cookie}; {bob.cookie}"
    assert [each.me["uid"] for each in (anna, bob)] == [ANNA, BOB]


def test_the_page_of_a_tunnel_has_another_port(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    answer = browser.send(
        "POST",
        "/v1/jobs/1/cancel",
        *(("Host", "localhost:9000"), ("Origin", "http://localhost:9000")),
        *browser.own.items(),
        body=b"{}",
    )
    assert answer.status == 202


def test_jobs_of_others_are_seen_as_at_the_socket(page: Served, service: FakeService) -> None:
    service.add(uid=BOB, name="secret")
    anna, owner = page.browser(ANNA), page.browser(OWN)
    (seen,) = anna.get("/v1/jobs").json["jobs"]
    assert (seen["name"], seen["masked"]) == ("job-1", True)
    assert anna.get("/v1/jobs/1/logs").status == 403
    assert owner.get("/v1/jobs/1").json["name"] == "secret"


OF_JOB = tuple(sorted(each.replace("{id}", "1") for each in CHANGES if "{id}" in each))


@pytest.mark.parametrize("owner", [None, BOB])
def test_what_the_socket_refuses_the_page_refuses_with_its_words(
    page: Served, service: FakeService, owner: int | None
) -> None:
    service.add(uid=BOB)
    rights, anna = Rights(own=OWN), page.browser(ANNA)
    actions = {route.path: action for route, action in ROUTES if route.method == "POST"}
    for path in OF_JOB:
        action = actions[path.replace("/1/", "/{id}/")]
        why = rights.decide(Caller(uid=ANNA), action, Owner(BOB), 1).why
        answer = anna.post(path, owner=owner)
        assert (answer.status, answer.json["detail"]) == (403, why), path
    assert service.views[1].state == "queued"


@pytest.mark.parametrize("owner", ["", "x", str(OWN), str(ANNA), f"{BOB}, {BOB}", f"0{BOB}"])
def test_an_administrator_names_the_owner_of_another_users_job(
    page: Served, service: FakeService, owner: str
) -> None:
    service.add(uid=BOB)
    browser = page.browser(OWN)
    for path in OF_JOB:
        answer = browser.post(path, owner=owner)
        assert (answer.status, answer.json["code"]) == (403, "forbidden"), path
        assert "job 1 belongs to uid 1002, which the page did not show" in answer.json["detail"]
    twice = *browser.own.items(), ("Origin", browser.origin), *[(OWNER_HEADER, str(BOB))] * 2
    assert browser.send("POST", OF_JOB[0], *twice, body=b"{}").status == 403
    assert service.views[1].state == "queued"


def test_an_administrator_changes_a_job_whose_owner_is_named(
    page: Served, service: FakeService
) -> None:
    browser = page.browser(OWN)
    for path, state, result in (
        ("hold", "queued", "on_hold"),
        ("release", "on_hold", "queued"),
        ("cancel", "queued", "cancelled"),
    ):
        service.add(uid=BOB, state=state)
        number = len(service.views)
        assert browser.post(f"/v1/jobs/{number}/{path}", owner=BOB).status < 300
        assert service.views[number].state == result
    assert browser.post("/v1/jobs/3/retry", owner=BOB).status == 201


def test_a_job_that_got_another_owner_is_looked_at_again(
    page: Served, service: FakeService
) -> None:
    service.add(uid=BOB)
    browser = page.browser(OWN)
    service.change(1, uid=ANNA)
    assert b"belongs to uid 1001" in browser.post("/v1/jobs/1/cancel", owner=BOB).body
    service.change(1, uid=OWN)
    assert browser.post("/v1/jobs/1/cancel", owner=BOB).status == 403
    assert service.views[1].state == "queued"
    assert browser.post("/v1/jobs/1/cancel").status == 202


def test_the_name_of_the_owner_opens_nothing(page: Served, service: FakeService) -> None:
    """Neither for a thief of the cookie, nor for another site, nor for the tab of another user in
    the administrator's browser."""
    service.add(uid=BOB)
    owner, anna = page.browser(OWN), page.browser(ANNA)
    anna.cookie = f"{owner.cookie}; {anna.cookie}"
    for path in OF_JOB:
        assert owner.post(path, owner=BOB, secret="").status == 401
        assert owner.post(path, owner=BOB, secret=anna.secrets["secret"]).status == 401
        assert owner.post(path, owner=BOB, origin="http://evil.example").status == 403
        assert anna.post(path, owner=BOB).status == 403
    assert service.views[1].state == "queued"


def test_who_leaves_the_administrators_has_no_rights_of_theirs_in_an_open_session(
    service: FakeService, tmp_path: Path
) -> None:
    people = Directory({ANNA: {"admins"}})
    with serving_page(
        service, tmp_path / "page", administrators=["@admins"], people=people
    ) as page:
        service.add(uid=BOB, name="secret")
        anna = page.browser(ANNA)
        assert anna.me["administrator"]
        assert anna.post("/v1/jobs/1/hold", owner=BOB).status == 200
        with stream_of(anna) as stream:
            service.feed.append(an_event(1, BOB))
            until(stream, b"no memory left")
            people.groups.clear()
            service.feed.append(an_event(2, BOB))
            assert b"no memory left" not in until(stream, b"id: 2\n", b"data: ")
        answer = anna.post("/v1/jobs/1/release", owner=BOB)
        assert answer.status == 403
        assert b"job 1 belongs to bob (uid 1002), and you are anna (uid 1001)" in answer.body
        assert anna.get("/v1/jobs/1").json["name"] == "job-1"
        assert service.views[1].state == "on_hold"


def an_event(seq: int, uid: int) -> Event:
    states = {"from_state": "queued", "to_state": "failed"}
    return Event(
        seq=seq, time=1.0, job_id=1, attempt=1, kind="end", why="no memory left", uid=uid, **states
    )


def until(stream: http.client.HTTPResponse, *wanted: bytes) -> bytes:
    """Read lines until one begins with each of these, or has it, in this order."""
    data = b""
    for each in wanted:
        line = b""
        while each not in line:
            line = stream.readline()
            data += line
    return data


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/arrays", "/v1/adoptions", "/v1/clean", "/v1/drain", "/v1/undrain"),
        *("/v1/jobs/1/resume", "/v1/jobs/1/unpause", "/v1/web/links", "/v1/web/end"),
        *("/v1/jobs/1/pause", "/v1/jobs/1/array", "/metrics", "/v1/openapi.json"),
    ],
)
def test_the_page_does_nothing_else(page: Served, service: FakeService, path: str) -> None:
    service.add(uid=ANNA)
    assert page.browser().post(path).status in (404, 405)
    assert (service.uids, len(service.views), service.drained) == ([], 1, None)


def test_unknown_keys_of_a_query_are_refused(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    assert browser.get("/v1/jobs?colour=red").status == 400
    assert browser.get("/v1/jobs/1/curves?points=0").status == 400


def test_browsers_are_told_what_not_to_do(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    for path in ("/", "/v1/jobs", "/v1/jobs/9", "/nowhere", "/page/js/main.js", "/session"):
        answer = browser.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, path
        kept = "no-cache" if path.startswith("/page/") or path == "/" else "no-store"
        assert answer.headers["Cache-Control"] == kept, path
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


def test_who_asks_too_often_waits_and_others_do_not(service: FakeService, tmp_path: Path) -> None:
    gate = page_gate(users=RateLimit(0.001, 5), strangers=RateLimit(0.001, 4))
    with serving_page(service, tmp_path / "page", gate=gate) as page:
        anna, bob = page.browser(ANNA), page.browser(BOB)
        stranger = page.stranger()
        found = [stranger.get("/page/icon.svg").status for _ in range(4)]
        assert found == [200, 200, 429, 429]
        found = [anna.get("/v1/health").status for _ in range(6)]
        assert found == [200] * 5 + [429]
        assert int(str(anna.get("/v1/health").headers["Retry-After"])) > 0
        assert bob.get("/v1/health").status == 200


def test_a_body_that_is_too_long(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    headers = {**browser.own, "Origin": browser.origin}
    answer = browser.send(
        "POST", "/v1/jobs/1/cancel", *headers.items(), body=b'{"a": "' + b"x" * LARGEST_BODY + b'"}'
    )
    assert answer.status == 413
    assert service.views[1].state == "queued"


def test_nothing_is_said_of_another_method(page: Served) -> None:
    browser: Browser = page.browser()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        headers = {**browser.own, "Origin": browser.origin}
        assert browser.send(method, "/v1/jobs/1", *headers.items()).status in (404, 405)


@cache
def a_bomb() -> bytes:
    return gzip.compress(bytes(400 << 20), 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
def test_a_compressed_body_is_refused_and_not_inflated(page: Served, host: str) -> None:
    bomb = a_bomb()
    began = time.process_time()
    headers = (("Host", host), ("Content-Encoding", "gzip"))
    answer = page.stranger().send("POST", "/v1/jobs/1/cancel", *headers, body=bomb)
    assert answer.status == 415
    assert time.process_time() - began < 0.5, "inflated, it takes a second"


def test_of_a_thousand_cookies_few_are_hashed(page: Served) -> None:
    browser = page.browser()
    name = str(browser.cookie).partition("=")[0]
    many = ("Cookie", "; ".join(f"{name}={number}" for number in range(250)))
    assert page.stranger().send("GET", "/v1/jobs", many).status == 401
    last = [*[("Cookie", f"{name}=x")] * (MOST_COOKIES - 1), ("Cookie", str(browser.cookie))]
    secret = tuple(browser.own.items())[1:]
    assert page.stranger().send("GET", "/v1/jobs", *last[-100:], *secret).status == 200


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
