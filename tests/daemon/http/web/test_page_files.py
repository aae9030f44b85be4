"""The files of the page: whole, of themselves alone, and as small as they are said to be."""

from __future__ import annotations

import gzip
import hashlib
import re

from tests.daemon.http.web.pages import Served
from zerotoolsd.http.web.page_files import ROOT, page_files

UPLOT = {
    "vendor/uplot/uPlot.iife.min.js": (
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    ),
    "vendor/uplot/uPlot.min.css": (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""uPlot 1.6.32 as its package on the npm registry has it."""
OWN = [path for path in ROOT.rglob("*") if path.is_file() and "vendor" not in path.parts]
LARGEST_LINES, MOST_PACKED = 400, 80 << 10


def test_the_library_is_as_it_was_published_with_its_licence() -> None:
    for name, digest in UPLOT.items():
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest
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
    for path in OWN:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|url\(", text), path.name


def test_scripts_import_what_is_there_and_make_no_markup_of_text() -> None:
    for path in ROOT.glob("js/*.js"):
        text = path.read_text("utf-8")
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (path.parent / name).is_file(), (path.name, name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert len(text.splitlines()) <= LARGEST_LINES


def test_every_module_is_asked_for_at_once() -> None:
    index = (ROOT / "index.html").read_text("utf-8")
    asked = set(re.findall(r'href="/page/js/([^"]+)"', index)) | {
        "main.js",
        "theme.js",
        "welcome.js",
    }
    assert asked == {path.name for path in ROOT.glob("js/*.js")}


def test_it_is_small() -> None:
    files = [file for name, file in page_files().items() if "LICENSE" not in name]
    assert sum(len(file.packed or file.data) for file in files) < MOST_PACKED


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
