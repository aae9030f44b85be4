"""What an open page costs: of a long queue what changes alone, and nothing while nobody looks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.visits import submit, visiting

pytestmark = pytest.mark.browser
WAITING = 120
WATCH = """() => {
    globalThis.redrawn = new Set();
    new MutationObserver((found) => found.forEach(({ target }) => {
        const row = (target.closest ? target : target.parentElement)?.closest("tr");
        if (row) redrawn.add(row.dataset.key);
    })).observe(document.querySelector(".jobs tbody"),
        { subtree: true, childList: true, characterData: true, attributes: true });
}"""
HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_of_a_long_queue_only_what_changes_is_asked_for_and_drawn(
    browser: Any, daemon: Daemon
) -> None:
    job = submit(daemon, "steps=1 release from=2 steps=5 hang", name="runs")
    daemon.wait_for_state(job, "running")
    daemon.client.drain("a long queue")
    for number in range(WAITING):
        submit(daemon, "exit=0", name=f"waits-{number}")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text(".strip", "100 or more")
        rows = visit.page.locator(".jobs tbody tr")
        assert rows.count() == 101
        assert rows.nth(1).get_attribute("data-key") == str(job + 1), "the next to start"
        visit.wait_for_text(f".jobs tr[data-key='{job}'] .progress", "1 of")
        visit.page.evaluate(WATCH)
        asked: list[str] = []
        visit.page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
        (daemon.run_dir(job) / "release").touch()
        visit.wait_for_text(f".jobs tr[data-key='{job}'] .progress", "6 of")
        assert visit.page.evaluate("[...redrawn]") == [str(job)]
        assert {each for each in asked if each.startswith("jobs?")} <= {
            "jobs?limit=100&state=running"
        }
        visit.page.get_by_role("button", name="show more").click()
        visit.wait_for_text(".strip", f"{WAITING}")
        assert visit.page.locator(".jobs tbody tr").count() == WAITING + 1


def test_a_page_that_nobody_sees_asks_for_nothing(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=1 hang", name="runs")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit:
        for view in ("#/jobs", f"#/jobs/{job}", f"#/jobs/{job}/log", "#/machine", "#/events"):
            visit.show(view)
            visit.page.evaluate(HIDE, True)
            visit.page.wait_for_timeout(500)
            asked: list[str] = []
            visit.page.on("request", lambda request, asked=asked: asked.append(request.url))
            daemon.client.cancel(submit(daemon, "hang", name=f"later-{view}"))
            visit.page.wait_for_timeout(2500)
            assert asked == [], view
            visit.page.evaluate(HIDE, False)
        visit.wait_for_text("table.events", "cancel")
