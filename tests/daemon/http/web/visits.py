"""A visit to the page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.patience import patient
from tests.daemon.daemons import Daemon, make_job
from tests.daemon.http.web.pages import ANNA, Served

PATIENCE_MS = 1000 * patient(30)
VIEWS = (
    *("#/jobs", "#/jobs/1", "#/jobs/1/log", "#/jobs/1/checkpoints", "#/jobs/1/picture"),
    *("#/jobs/1/predictions", "#/jobs/1/examples", "#/jobs/1/attempts", "#/machine"),
    *("#/machine/host", "#/events", "#/submit"),
)
"""All that there is to see, with a job 1."""


def script(name: str) -> str:
    """A function that is evaluated in the page."""
    return (Path(__file__).parent / "scripts" / f"{name}.js").read_text("utf-8")


def port_of(page: Any) -> int:
    """Where a page of a browser is."""
    return int(page.url.partition("127.0.0.1:")[2].partition("/")[0])


def submit(daemon: Daemon, fake: str, **changes: Any) -> int:
    return int(daemon.client.submit(make_job(fake, **changes))["id"])


def is_error(said: Any) -> bool:
    """Of the page's own; that a request failed is noted of its answer, with more to say."""
    return bool(said.type == "error" and "Failed to load resource" not in said.text)


class Visit:
    """A page of a browser that has a session, and what went wrong in it."""

    def __init__(self, browser: Any, url: str, before: str = "", **options: Any) -> None:
        """`url` is a link. `before` runs before any script of the page."""
        self.context = browser.new_context(**options)
        self.context.add_init_script(before)
        self.context.add_init_script("globalThis.hacked = () => { globalThis.wasHacked = true; };")
        self.context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + "
            "event.violatedDirective + ' ' + event.blockedURI));"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(f"{error}"))
        self.page.on(
            "console",
            lambda said: self.errors.append(said.text) if is_error(said) else None,
        )
        self.page.on(
            "response",
            lambda answer: (
                self.errors.append(f"{answer.status} {answer.url}")
                if answer.status >= 400
                else None
            ),
        )
        self.page.goto(url)
        self.page.wait_for_selector("#link.live")

    def show(self, place: str) -> None:
        """Go to a part of the page."""
        self.page.evaluate("(place) => { location.hash = place; }", place)
        self.page.wait_for_selector("main > *")

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.page.inner_text(selector))

    def wait_for_text(self, selector: str, text: str) -> None:
        """Until an element says this."""
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
            arg=[selector, text],
        )

    def cancelled_by_the_user(self, job_id: int) -> None:
        """Cancel a job as the user does."""
        self.show(f"#/jobs/{job_id}")
        self.page.get_by_role("button", name="Cancel", exact=True).click()
        self.page.get_by_role("button", name="Cancel the job").click()


@contextmanager
def visiting(
    browser: Any, served: Daemon | Served, *, uid: int = ANNA, **options: Any
) -> Iterator[Visit]:
    link = served.link(uid) if isinstance(served, Served) else served.client.web_link()
    visit = Visit(browser, link["url"], **options)
    try:
        yield visit
        assert not visit.errors, visit.errors
        if not visit.page.is_closed():
            assert visit.page.evaluate("globalThis.wasHacked ?? false") is False
    finally:
        visit.context.close()
