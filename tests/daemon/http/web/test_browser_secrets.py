"""The secrets of a session in a real browser: in its own tabs, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.elsewhere import elsewhere
from tests.daemon.http.web.pages import Browser
from tests.daemon.http.web.visits import port_of, submit, visiting
from tests.daemon.waiting import wait_for

pytestmark = pytest.mark.browser
KEPT = "sessionStorage.getItem('zerotools-session')"


def test_a_cookie_that_the_browser_gives_to_another_port_is_of_no_use(
    browser: Any, daemon: Daemon
) -> None:
    with visiting(browser, daemon) as visit, elsewhere() as (port, came):
        other = visit.context.new_page()
        other.goto(f"http://127.0.0.1:{port}/")
        assert other.evaluate(KEPT) is None
        (cookie,) = {each["Cookie"] for each in came if "Cookie" in each}
        thief = Browser(port_of(visit.page), cookie)
        for target in ("/session", "/v1/jobs", "/v1/events/stream"):
            assert thief.get(target).status == 401
        assert thief.post("/session/end").status == 401
        other.goto(f"http://127.0.0.1:{thief.port}/")
        other.wait_for_selector("#link.live")


def test_a_page_is_loaded_again_and_opened_in_a_second_tab(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=1 hang", name="tiny")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit:
        visit.page.reload()
        visit.page.wait_for_selector("#link.live")
        visit.wait_for_text("table.jobs", "tiny")
        with visit.context.expect_page() as opened:
            visit.page.click("table.jobs th a", modifiers=["Control"])
        second = opened.value
        second.wait_for_selector("#link.live")
        visit.page.close()
        second.reload()
        second.wait_for_selector("#link.live")
        second.get_by_role("button", name="Cancel", exact=True).wait_for()


def test_without_another_tab_an_address_alone_opens_nothing(browser: Any, daemon: Daemon) -> None:
    with visiting(browser, daemon) as visit:
        second = visit.context.new_page()
        visit.page.close()
        second.goto(visit.page.url)
        second.wait_for_function("() => document.title.includes('no session')")
        assert "This tab has no session" in second.inner_text("main")


def test_whoever_takes_the_port_finds_no_secret_in_the_tab(browser: Any, daemon: Daemon) -> None:
    with visiting(browser, daemon) as visit:
        assert visit.page.evaluate(KEPT) is not None
        port = port_of(visit.page)
        daemon.stop()
        visit.wait_for_text("#link", "does not answer")
        with elsewhere(port) as (_, came):
            wait_for(lambda: came, "the page to look for the daemon")
            second = visit.context.new_page()
            second.goto(f"http://127.0.0.1:{port}/")
            asked = (
                "new Promise((done) => { const channel = new BroadcastChannel('zerotools-secrets');"
                " channel.onmessage = ({ data }) => done(data);"
                " channel.postMessage({ wanted: true }); setTimeout(() => done(null), 300); })"
            )
            assert second.evaluate(asked) is None
            visit.page.reload()
            assert visit.page.evaluate(KEPT) is None
