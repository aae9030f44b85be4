"""The requests that the page makes, from its link on."""

from __future__ import annotations

import gzip
import http.client

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, BOB, OWN, Browser, Served
from zerotoolsd.http.web.page_app import KEPT_SECONDS, MOST_KEPT, PictureDocuments
from zerotoolsd.http.web.page_app import PICTURE_HEADERS as HEADERS


def token_of(page: Served, uid: int = ANNA) -> tuple[Browser, str]:
    link = page.link(uid)
    return Browser(int(link["port"])), "/link/" + link["url"].rpartition("/")[2]


def test_a_link_gives_a_cookie_that_scripts_and_other_sites_do_not_get(page: Served) -> None:
    browser, target = token_of(page)
    answer = browser.follow(target)
    cookie = str(answer.headers["Set-Cookie"])
    assert answer.status == 201
    assert set(answer.json) == {"id", "key", "secret"}
    assert not [value for value in answer.json.values() if value in cookie]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie
    assert (answer.headers["Cache-Control"], answer.headers["ETag"]) == ("no-store", None)
    again = browser.follow(target)
    assert (again.status, again.headers["Set-Cookie"]) == (403, None)
    assert b"used up" in again.body


def test_who_only_looks_at_a_link_does_not_use_it_up(page: Served) -> None:
    browser, target = token_of(page)
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        answer = browser.send(method, target)
        assert answer.status == (200 if method == "GET" else answer.status)
        assert answer.headers["Set-Cookie"] is None
    for origin in ("null", "http://evil.example", f"http://127.0.0.1:{browser.port + 1}"):
        assert browser.send("POST", target, ("Origin", origin), body=b"{}").status == 403
    assert browser.follow(target).status == 201


@pytest.mark.parametrize("token", ["x", "%00", "..%2f..%2fetc", "a" * 5000, "%ff"])
def test_a_link_that_is_none(page: Served, token: str) -> None:
    answer = page.stranger().follow(f"/link/{token}")
    assert (answer.status, answer.headers["Set-Cookie"]) == (403, None)


def test_whose_page_it_is(page: Served) -> None:
    anna, owner = page.browser(ANNA), page.browser(OWN)
    assert (anna.me["uid"], anna.me["administrator"]) == (ANNA, False)
    assert (owner.me["uid"], owner.me["administrator"]) == (OWN, True)
    assert anna.secrets["id"] != owner.secrets["id"]
    assert not set(anna.secrets.values()) & set(anna.me.values())


def test_only_the_daemon_proves_that_it_has_the_key(page: Served) -> None:
    browser, stranger = page.browser(), page.stranger()
    nonce = "0123456789abcdef"
    answer = stranger.send("GET", f"/hello?session={browser.secrets['id']}&nonce={nonce}")
    assert answer.status == 200
    assert set(answer.json) == {"proof"}
    assert not set(browser.secrets.values()) & {answer.json["proof"]}
    for query in (
        f"session={'0' * 32}&nonce={nonce}",
        f"session={browser.secrets['id']}&nonce=xyz",
        f"session={browser.secrets['id']}",
        "",
    ):
        assert stranger.send("GET", f"/hello?{query}").status == 404, query


def test_logging_out_ends_that_session_alone(page: Served) -> None:
    first, second = page.browser(), page.browser()
    answer = first.post("/session/end")
    assert answer.status == 200
    assert "Max-Age=0" in str(answer.headers["Set-Cookie"])
    assert first.get("/v1/jobs").status == 401
    assert second.get("/v1/jobs").status == 200


def test_own_jobs_are_changed_by_the_words_of_the_page(page: Served, service: FakeService) -> None:
    service.add(uid=ANNA)
    browser = page.browser()
    assert browser.post("/v1/jobs/1/cancel").json["state"] == "cancelled"
    assert browser.post("/v1/jobs/1/retry").status == 201
    held = service.add(uid=ANNA, state="on_hold")
    assert browser.post(f"/v1/jobs/{held.id}/release").json["state"] == "queued"
    assert browser.post(f"/v1/jobs/{held.id}/hold").json["state_word"] == "held"


def test_a_picture_is_a_document_of_its_own_that_needs_its_token(
    page: Served, service: FakeService
) -> None:
    service.add(uid=ANNA)
    target = "/v1/jobs/1/checkpoints/40/picture"
    assert page.browser(BOB).get(target).status == 403
    assert page.stranger().get(target).status == 401
    assert page.browser(ANNA).get("/v1/jobs/1/checkpoints/x/picture").status == 400
    url = page.browser(ANNA).get(target).json["url"]
    visit = ("Sec-Fetch-Mode", "navigate")
    answer = page.stranger().send("GET", url, visit)
    assert (answer.status, answer.body) == (200, b"<!doctype html><title>1 at 40</title>")
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "allow-same-origin" not in HEADERS["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert page.stranger().send("GET", url[:-1], visit).status == 404


def test_events_are_streamed(page: Served) -> None:
    browser = page.browser()
    link = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=10)
    link.request("GET", "/v1/events/stream", headers=browser.own)
    answer = link.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.readline() == b": zerotoolsd\n"
    link.close()


@pytest.mark.parametrize(
    "name",
    [
        "../sessions.py",
        "..%2fsessions.py",
        "%2e%2e/page_app.py",
        "js/../../page_app.py",
        "/etc/passwd",
        "js",
        "js/",
        "vendor/uplot",
        "x.js",
        "style.css",
        "js/format.js",
        "page.css%00",
    ],
)
def test_no_other_file_is_sent(page: Served, name: str) -> None:
    answer = page.browser().get(f"/page/{name}")
    assert answer.status == 404
    assert b"import" not in answer.body


def test_files_are_packed_and_kept(page: Served) -> None:
    browser = page.browser()
    plain = browser.get("/page/page.css")
    packed = browser.get("/page/page.css", ("Accept-Encoding", "br, gzip"))
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert plain.headers["Content-Type"] == "text/css; charset=utf-8"
    again = browser.get("/page/page.css", ("If-None-Match", str(plain.headers["ETag"])))
    assert (again.status, again.body) == (304, b"")
    kinds = {"js/main.js": "text/javascript", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        assert browser.get(f"/page/{name}").headers["Content-Type"].startswith(kind)


def test_a_document_is_found_by_its_token_for_a_while() -> None:
    now = [0.0]
    kept = PictureDocuments(clock=lambda: now[0])
    first = kept.add("one")
    assert (kept.find(first), kept.find(first[:-1])) == ("one", None)
    now[0] = KEPT_SECONDS + 1
    assert kept.find(first) is None


def test_many_documents_drop_the_oldest() -> None:
    kept = PictureDocuments()
    tokens = [kept.add(str(number)) for number in range(MOST_KEPT + 1)]
    found = [kept.find(token) for token in tokens]
    assert found == [None, *map(str, range(1, MOST_KEPT + 1))]
