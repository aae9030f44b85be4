"""A headless browser for the tests and screenshots of the page: Debian's Chromium, driven by
Playwright (the extra `browser`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


SERIOUS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => [id, ...nodes.map((each) => each.target.join(" ")).slice(0, 3)])"""
"""JavaScript that returns the serious and critical violations that axe-core finds: each rule with
its first elements.

`AXE_PACKAGE` contains axe-core's script (deque.com/axe), which checks WCAG 2.2 A and AA.
"""
AXE_PACKAGE = "axe_playwright_python"


def script_of_axe() -> str | None:
    """Return the JavaScript of axe-core, which checks accessibility; None if its package is not
    installed.
    """
    found = find_spec(AXE_PACKAGE)
    if found is None or found.origin is None:
        return None
    return (Path(found.origin).parent / "axe.min.js").read_text("utf-8")


def why_no_browser() -> str | None:
    """Return the reason why no browser can be started here; None if one can be started."""
    if find_spec("playwright") is None:
        return "playwright is not installed (the extra `browser`)"
    if _program() is None:
        return "no Chromium is installed; on Debian: apt-get install chromium"
    return None


def _program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Return a context manager that starts a browser of `playwright.sync_api`, and closes it at the
    end.
    """
    from playwright.sync_api import sync_playwright

    alone = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=_program(), args=[*ARGUMENTS, *alone], headless=True
        )
        try:
            yield browser
        finally:
            browser.close()
