"""The requests that the page makes, from its link on."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import re

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, BOB, OWN, Browser, Served
from zerotoolsd.http.web.page_app import ROOT, page_files
from zerotoolsd.http.web.picture_documents import POLICY


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
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert "allow-same-origin" not in POLICY
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
        "style.css%00",
    ],
)
def test_no_other_file_is_sent(page: Served, name: str) -> None:
    answer = page.browser().get(f"/page/{name}")
    assert answer.status == 404
    assert b"import" not in answer.body


UPLOT = {
    "vendor/uplot/uPlot.js": ("19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
    "vendor/uplot/uPlot.min.css": (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""uPlot 1.6.32 as its package on the npm registry has it.

The script is `uPlot.iife.min.js` there.
"""
EXPORT = b"export default uPlot;\n"
"""The line that makes the published script a module."""
OWN_FILES = [path for path in ROOT.rglob("*") if path.is_file() and "vendor" not in path.parts]
LARGEST_LINES, MOST_PACKED_AT_FIRST, MOST_PACKED = 400, 28 << 10, 87 << 10


def test_the_library_is_as_it_was_published_with_its_licence() -> None:
    for name, digest in UPLOT.items():
        published = (ROOT / name).read_bytes().removesuffix(EXPORT)
        assert hashlib.sha256(published).hexdigest() == digest
    assert "MIT" in (ROOT / "vendor/uplot/LICENSE.txt").read_text()


def test_pages_name_files_that_are_there_and_nothing_else() -> None:
    for path in ROOT.glob("*.html"):
        text = path.read_text("utf-8")
        for name in re.findall(r'(?:src|href)="([^"]*)"', text):
            known = name.removeprefix("/page/") in page_files()
            assert known or name == "/" or name.startswith("#"), (path.name, name)
        assert "<style" not in text
        assert " style=" not in text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r'\son[a-z]+="', text)


def test_nothing_is_taken_from_elsewhere() -> None:
    for path in OWN_FILES:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|url\(", text), path.name


def test_scripts_import_what_is_there_and_make_no_markup_of_text() -> None:
    for path in ROOT.glob("js/*.js"):
        text = path.read_text("utf-8")
        for name in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / name).is_file(), (path.name, name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert len(text.splitlines()) <= LARGEST_LINES


def first_modules() -> set[str]:
    """The scripts without which the page shows nothing."""
    found, left = set[str](), ["main.js"]
    while left:
        found.add(name := left.pop())
        named = re.findall(r'from "\./([^"]+)"', (ROOT / "js" / name).read_text("utf-8"))
        left += set(named) - found
    return found


def test_the_modules_of_the_first_view_are_asked_for_at_once_and_the_others_later() -> None:
    index = (ROOT / "index.html").read_text("utf-8")
    asked = set(re.findall(r'rel="modulepreload" href="/page/js/([^"]+)"', index))
    assert asked | {"main.js"} == first_modules()
    later = first_modules() | {"theme.js", "welcome.js"}
    named = re.compile(r'(?:from |import\()"\./([^"]+)"')
    for path in ROOT.glob("js/*.js"):
        later |= set(named.findall(path.read_text("utf-8")))
    assert later == {path.name for path in ROOT.glob("js/*.js")}


def test_comments_are_not_sent_and_all_else_is() -> None:
    for name, file in page_files().items():
        if not name.endswith((".js", ".css")) or name in UPLOT:
            continue
        lines = (ROOT / name).read_text("utf-8").split("\n")
        sent = file.data.decode().split("\n")
        assert len(sent) == len(lines), name
        for line, shown in zip(lines, sent, strict=True):
            is_comment = re.match(r"\s*(//|/\*| \*|[^;{},]*\*/$)", line)
            assert shown == line or (shown == "" and is_comment), (name, line)
            assert not shown.lstrip().startswith(("//", "/*")), (name, line)
            assert shown.count("`") % 2 == 0, "a text of several lines could hold a comment"


def test_it_is_small() -> None:
    files = page_files()
    first = {f"js/{name}" for name in first_modules()} | {
        name for name in files if name.endswith(".css") or name in ("index.html", "js/theme.js")
    }
    sizes = {
        name: len(file.packed or file.data) for name, file in files.items() if "LICENSE" not in name
    }
    assert sum(sizes[name] for name in first) < MOST_PACKED_AT_FIRST
    assert sum(sizes.values()) < MOST_PACKED


def test_files_are_packed_and_kept(page: Served) -> None:
    browser = page.browser()
    plain = browser.get("/page/style.css")
    packed = browser.get("/page/style.css", ("Accept-Encoding", "br, gzip"))
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert plain.headers["Content-Type"] == "text/css; charset=utf-8"
    again = browser.get("/page/style.css", ("If-None-Match", str(plain.headers["ETag"])))
    assert (again.status, again.body) == (304, b"")
    kinds = {"js/main.js": "text/javascript", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        assert browser.get(f"/page/{name}").headers["Content-Type"].startswith(kind)
