"""Make a page about checkpoints: one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import new_text_file

MARK = "<!-- a picture of a checkpoint, made by zerotools -->"
"""The second line of each page. A newer page may replace a file with this line."""


def page_of(contents: Mapping[str, Any], body: str = "checkpoint") -> str:
    """Return the page that shows `contents`, made from the files `body`.html and `body`.js.

    `contents` is stored in the page as JSON, which no browser runs. The content security policy of
    the page allows only its own script and no request, so a name in a checkpoint cannot add markup,
    code or a link.
    """
    folder = files(__package__)

    def text(name: str) -> str:
        return (folder / name).read_text("utf-8")

    modules = (text(name) for name in ("page.js", "charts.js", f"{body}.js"))
    script = re.sub("^ +", "", "".join(modules), flags=re.MULTILINE)  # no text has several lines
    values = json.dumps(contents, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "MARK": MARK,
        "POLICY": f"default-src 'none'; script-src '{_hash(script)}'; style-src 'unsafe-inline'",
        "TITLE": html.escape(contents["title"]),
        "STYLE": text("page.css"),
        "BODY": text(f"{body}.html"),
        "SCRIPT": script,
        "VALUES": values.replace("<", "\\u003c").replace("\u2028", "\\u2028"),
    }
    page = "".join(parts.get(piece, piece) for piece in text("page.html").split("@@"))
    return page.encode("utf-8", "backslashreplace").decode()  # a path may not be UTF-8


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def check_page_target(path: Path) -> None:
    """Check that `write_page` can write to `path`.

    Raises:
        BadRequest: `path` is not the name of a file, or its directory does not exist, or there is a
            file at `path` that is not a page of zerotools.
    """
    if path.is_dir() or path.name in ("", "-"):
        raise BadRequest(f"--html {path} is not the name of a file; choose one, such as page.html")
    if path.exists() and not _is_page(path):
        raise BadRequest(
            f"--html {path} exists, and zerotools did not write it as a page; choose another name"
        )
    if not path.parent.is_dir():
        raise BadRequest(f"--html {path}: the directory {path.parent} does not exist; make it")


def write_page(path: Path, page: str) -> None:
    """Write `page` to `path`. It appears complete, and replaces only a page of zerotools.

    Raises:
        BadRequest: as `check_page_target`.
    """
    check_page_target(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with new_text_file(partial) as file:
            file.write(page)
        partial.replace(path)
    except BaseException:  # removed, and raised again
        partial.unlink(missing_ok=True)
        raise


def _is_page(path: Path) -> bool:
    if not path.is_file():  # a pipe has no end
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(200)
