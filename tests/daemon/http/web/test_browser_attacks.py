"""Who attacks the page through a browser: other sites, other ports, whoever takes its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.elsewhere import elsewhere
from tests.daemon.http.web.visits import port_of, submit, visiting
from tests.daemon.waiting import wait_for

pytestmark = pytest.mark.browser


def test_without_a_session_there_is_nothing_to_see(browser: Any, daemon: Daemon) -> None:
    daemon.wait_for_state(submit(daemon, "nan hang", name="secret"), "running")
    url = daemon.client.web_link()["url"]
    root = url.partition("/link/")[0]
    page = browser.new_page()
    try:
        page.goto(f"{root}/")
        assert "This browser has no session" in page.inner_text("main")
        assert page.evaluate("fetch('/v1/jobs').then((answer) => answer.status)") == 401
        page.goto(url)
        page.get_by_role("link", name="#1 secret: the loss is not a number").wait_for()
        other = browser.new_page()
        other.goto(url)
        other.wait_for_function("() => document.title.includes('this link is used up')")
        assert "This link is used up" in other.inner_text("main")
        other.close()
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("dialog").get_by_role("button", name="Log out").click()
        page.wait_for_function("() => document.title.includes('no session')")
        assert "secret" not in page.inner_text("body")
        page.goto(f"{root}/")
        assert "This browser has no session" in page.inner_text("main")
    finally:
        page.context.close()


ATTACKS = (
    "fetch(`${root}/v1/jobs/1/cancel`, {method: 'POST', credentials: 'include', mode: 'no-cors'})",
    "fetch(`${root}/v1/jobs/1/cancel`, {method: 'POST', credentials: 'include', mode: 'no-cors', "
    "headers: {'Content-Type': 'text/plain'}, body: '{}'})",
    "fetch(`${root}/v1/jobs`, {method: 'POST', credentials: 'include', mode: 'no-cors', "
    "headers: {'Content-Type': 'text/plain'}, body: '{\"job\": {\"name\": \"planted\"}}'})",
    "fetch(`${root}/v1/jobs/1/cancel`, {method: 'POST', credentials: 'include', "
    "headers: {'Zerotools-Owner': '0', 'Zerotools-Page': 'x'}, body: '{}'})",
    "fetch(`${root}/session`, {credentials: 'include'}).then((answer) => answer.text())",
    "fetch(`${root}/v1/jobs`, {credentials: 'include'}).then((answer) => answer.text())",
    "new Promise((done) => { const frame = document.createElement('iframe'); frame.src = root; "
    "frame.onload = () => { try { done(frame.contentDocument.body.innerText); } catch (error) { "
    "done(''); } }; document.body.append(frame); })",
    "new Promise((done) => { const form = document.createElement('form'); form.method = 'POST'; "
    "form.target = 'out'; form.action = `${root}/v1/jobs/1/cancel`; document.body.append(form); "
    "form.submit(); setTimeout(() => done(''), 300); })",
)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_page_of_elsewhere_changes_and_reads_nothing(
    browser: Any, daemon: Daemon, name: str
) -> None:
    job = submit(daemon, "steps=1 hang", name="secret")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit, elsewhere() as (port, _):
        root = visit.page.url.partition("/#")[0].rstrip("/")
        other = visit.context.new_page()
        other.goto(f"http://{name}:{port}/")
        for attack in ATTACKS:
            code = f"(root) => ({attack}).catch((error) => '')"
            said = other.evaluate(code, root)
            assert "secret" not in json.dumps(said)
            assert "administrator" not in json.dumps(said)
        other.close()
        assert [each["state"] for each in daemon.client.jobs()] == ["running"]
        visit.cancelled_by_the_user(job)
        visit.wait_for_text("#said", "asked to stop")
        assert daemon.client.job(job)["state"] in ("stopping", "cancelled")


def test_an_open_page_sends_its_cookie_to_nobody_who_took_the_port(
    browser: Any, daemon: Daemon
) -> None:
    submit(daemon, "hang", name="tiny")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "tiny")
        port = port_of(visit.page)
        daemon.stop()
        visit.wait_for_text("#link", "does not answer")
        with elsewhere(port) as (_, came):
            wait_for(lambda: len(came) >= 2, "the page to look for the daemon")
            assert not [each for each in came if "Cookie" in each]
            assert not [each for each in came if "Zerotools-Page" in each]
        assert visit.page.query_selector("#link.live") is None
