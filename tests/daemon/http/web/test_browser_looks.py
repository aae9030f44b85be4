"""How the page looks, for everybody who looks at it; and what its scripts compute."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness.browser import SERIOUS, script_of_axe
from tests.daemon.daemons import Daemon
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, an_attempt
from tests.daemon.http.web.pages import ANNA, Served
from tests.daemon.http.web.visits import VIEWS, script, submit, visiting
from tests.golden_files import JOB as GOLDEN
from zerotools.jobs import states

pytestmark = pytest.mark.browser

WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

LINES = """() => [...document.querySelectorAll(".commands button")].map((button) => {
  const words = document.createRange();
  words.selectNodeContents(button);
  return words.getClientRects().length;
})"""
"""The number of lines of each button of a command."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    browser: Any, page: Served, service: FakeService, scheme: str
) -> None:
    """axe-core's rules (deque.com/axe), by which WCAG 2.2 A and AA are checked."""
    axe = script_of_axe()
    if axe is None:
        pytest.skip("./scripts/browser installs axe-core")
    service.add(uid=ANNA, state="running", attempts=(an_attempt(),))
    service.add(uid=ANNA)
    service.add(uid=ANNA, state="failed", reason="rank 0 died", ended=time.time())
    service.write(1, "progress.jsonl", json.dumps({**STEP, "event": "step"}).encode() + b"\n")
    options = {"viewport": {"width": 1280, "height": 800}, "color_scheme": scheme}
    with visiting(browser, page, **options) as visit:
        visit.page.evaluate(axe)
        for view in (*VIEWS, "#/jobs/1/curves/2"):
            visit.show(view)
            visit.page.wait_for_timeout(300)
            assert visit.page.evaluate(SERIOUS) == [], view
        visit.show("#/jobs/2")
        visit.page.get_by_role("button", name="Edit…").click()
        assert visit.page.evaluate(SERIOUS) == [], "a dialog"
        visit.page.evaluate(
            "document.querySelector('dialog').append(document.createElement('button'))"
        )
        assert [each[0] for each in visit.page.evaluate(SERIOUS)] == ["button-name"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
def test_every_view_fits_and_says_what_it_is(
    browser: Any, daemon: Daemon, scheme: str, width: int
) -> None:
    """No view is wider than the window; all that is used has a name; text differs from its ground
    by 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    job = submit(daemon, "steps=30 save=20 exit=0", name="x" * 200)
    daemon.wait_for_end(job)
    daemon.wait_for_end(submit(daemon, "steps=3 exit=0", name="W" * 200))
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with visiting(browser, daemon, **options) as visit:
        visit.page.get_by_label("All", exact=True).check()
        visit.wait_for_text("table.jobs", "succeeded")
        for view in (*VIEWS, "#/jobs/1/curves/2"):
            visit.show(view)
            visit.page.wait_for_timeout(400)
            assert visit.page.evaluate(WIDE) <= 0, view
            assert visit.page.evaluate(script("nameless")) == [], view
            assert visit.page.evaluate(script("contrast")) == [], view
        visit.show("#/jobs/1")
        others = visit.page.get_by_label("Compare with another job")
        assert others.bounding_box()["width"] <= 280
        visit.show("#/jobs")
        for between in (700, 970, 990, 1140):
            visit.page.set_viewport_size({"width": between, "height": 800})
            assert visit.page.evaluate(WIDE) <= 0, between
        # The rank only pretended to save.
        visit.errors = [each for each in visit.errors if not each.endswith("/20/picture")]


def test_a_button_beside_a_long_command_keeps_its_word_whole(
    browser: Any, page: Served, service: FakeService, tmp_path: Path
) -> None:
    output = tmp_path / ("long-" * 20)
    shutil.copytree(GOLDEN, output / GOLDEN.name)
    service.add(uid=ANNA, output_dir=str(output))
    with visiting(browser, page) as visit:
        visit.show("#/jobs/1/checkpoints")
        visit.page.click(".tree summary")
        for width in (1300, 1150, 1000, 970, 390):
            visit.page.set_viewport_size({"width": width, "height": 800})
            assert set(visit.page.evaluate(LINES)) == {1}, width
            assert visit.page.evaluate(WIDE) <= 0, width


def test_what_the_scripts_compute(browser: Any, daemon: Daemon) -> None:
    with visiting(browser, daemon) as visit:
        found = visit.page.evaluate(script("computed"))
    assert found["tokens"] == [800, 50, None]
    assert found["differences"] == [
        ["model.config.layers", [2, None]],
        ["model.path", [None, "/m"]],
        ["train.steps", [3, 4]],
    ]
    assert found["set_keys"] == {
        "gpus": 2,
        "train": {"steps": 3},
        "model": {"config": {"layers": 2}},
    }
    assert found["changes"] == {
        "set": {"train.steps": 4, "model.config": {"layers": 2}},
        "unset": ["gpus"],
    }
    ranges = [[-7.6, 107.6], [46.3, 102.7], [-1, 1]]
    assert found["trimmed"] == [pytest.approx(each) for each in ranges]
    assert found["after"] == [{"job": 3, "condition": "ok"}, {"job": 4, "condition": "any"}]
    assert found["ticks"] == [
        [[3, 12, 10, 0], [3, 12, 15, 0]],
        [[3, 12, 15, 0], [3, 12, 30, 0], [3, 12, 45, 0], [3, 13, 0, 0]],
        [[3, 18, 0, 0], [4, 0, 0, 0], [4, 6, 0, 0], [4, 12, 0, 0]],
        [[5, 0, 0, 0], [7, 0, 0, 0], [9, 0, 0, 0]],
    ]
    assert found["days"] == [[3, 0, 0, 0], [4, 0, 0, 0]]
    assert found["hours"] == [[None, [2.5, 2]], [7, [0.5, 2]]]
    assert found["shades"][:3] == ["rgb(0 0 0)", "rgb(0 0 0)", "rgb(0 50 100)"]
    assert found["shades"][3:] == ["rgb(0 100 200)", "rgb(255 255 255)", "rgb(255 255 255)"]
    known = {name: set(names) for name, names in found["states"].items()}
    running, ended = set(states.ACTIVE), set(states.TERMINAL)
    everything = set(states.STATES)
    assert known == {
        "all": everything,
        "over": ended,
        "runs": running,
        "open": everything - ended,
    }
    assert set(found["states"]["open"][: len(running)]) == running, "those come first"
    assert found["words"] == {each: states.display_text(each) for each in everything}
    assert found["shown"] == [
        ["stalled 12m", "bad", "!"],
        ["late 1m", "warning", "!"],
        ["saving 7s", "busy", "▾"],
        ["running", "busy", "▶"],
        ["held", "warning", "‖"],
        ["waiting retry", "warning", "↻"],
    ]
    assert found["speeds"] == [True, False, False, False]
    assert found["bytes"] == ["0 B", "1023 B", "1.5 KiB", "1.0 TiB", "–", "–"]
    assert found["duration"] == [
        "0 s",
        "1 min 00 s",
        "1 min 01 s",
        "1 h 01 min",
        "1 d 01 h",
        "–",
        "–",
    ]
    assert found["measure"] == ["0", "1.000", "1.00e−5", "1.23e5", "−2.500", "–"]
    assert found["quoted"][:-1] == ["/a/b-1.x", "'it'\\''s'", "'a b'", "'$(x)'", "''"]
    pasted = found["quoted"][-1]
    assert pasted.isprintable()
    command = ["env", "LC_ALL=C.UTF-8", "bash", "-c", f"printf %s {pasted}"]
    read = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert read == "/a\x1b[201~'\n\u202e\\b"
    every, lora = [3, 4, 5], [4, 5]
    assert found["passing"] == [every, lora, [3], [4], [3, 5], [5], every, [3], []]
    assert found["lines"] == ["20%", "x", "y", "ab\tc"]
    assert found["smoothed"] == pytest.approx([2, 10 / 3, None, 6.0], nan_ok=True)
    assert found["joined"] == [[1, 2, 3], [1, None, 3], [None, 20, 30]]
    assert found["stacked"] == [[1, None, 3], [11, 20, 3]]
    assert found["owners"] == {"owners": [{"job": 3, "values": [4, 20]}], "others": [6, 0]}
    assert found["gaps"] == {
        "times": [0, 60, 120, 180, 300, 360],
        "series": {"a": {"mean": [1, None, 3, None, 4, 5]}},
    }
    events = found["events"]
    assert events == {"events": [{"id": 7, "kind": "x", "data": {"a": 1}}], "rest": "id: 8\nda"}
    assert found["hex"] == ["00ff", [0, 255], []]
    assert "zerotools reshard '/r/it'\\''s' '/r/it'\\''s-for-2' --world-size 2" in found["commands"]


def test_failures_stand_out_and_are_one_click_away(
    browser: Any, page: Served, service: FakeService
) -> None:
    service.add(uid=ANNA, name="waits")
    service.add(uid=ANNA, name="broken", state="failed", reason="rank 0 died", ended=time.time())
    with visiting(browser, page) as visit:
        visit.wait_for_text("table.jobs .ranks", "submitted")
        assert visit.text("table.jobs .ranks").startswith("2 CPU")
        visit.page.get_by_role("button", name="1 failed today: show them").click()
        visit.wait_for_text("table.jobs", "broken")
        assert visit.text("table.jobs .ranks").startswith("2 CPU\nended just now")
        assert "waits" not in visit.text("table.jobs tbody")
        assert visit.page.get_by_label("Search jobs").input_value() == "failed"
        assert visit.page.get_by_label("Ended").is_checked()


def test_late_and_stalled_jobs_are_counted_and_named_as_in_the_queue(
    browser: Any, page: Served, service: FakeService
) -> None:
    now = time.time()
    for name, phase, seconds in (
        ("trains", {}, 0),
        ("slow", {"late": True, "last_step": now - 250}, 250),
        ("silent", {"quiet": True, "last_progress": now - 790}, 790),
        ("hangs", {"stalled": True, "last_step": now - 7300}, 7300),
    ):
        service.add(
            uid=ANNA,
            name=name,
            state="running",
            attempts=(an_attempt(),),
            phase=phase,
            state_since=now - seconds,
        )
    with visiting(browser, page) as visit:
        visit.wait_for_text("table.jobs", "hangs")
        strip = visit.text(".strip").split("\n")
        counted = dict(zip(strip[::2], strip[1::2], strict=True))
        words = ("running", "late", "stalled", "waiting")
        assert [counted[word] for word in words] == ["1", "2", "1", "0"]
        alerts = visit.page.locator("#alerts .words").all_inner_texts()
        assert alerts == ["#4 hangs: stalled 2h", "#3 silent: late 13m", "#2 slow: late 4m"]
        badges = visit.page.locator("table.jobs .badge").all_inner_texts()
        assert [each.split("\n")[1] for each in badges[1:4]] == [
            "late 4m",
            "late 13m",
            "stalled 2h",
        ]
        service.change(3, phase={})
        service.change(4, phase={})
        visit.page.wait_for_function(
            "() => !document.querySelector('.strip').innerText.includes('stalled')"
        )
        visit.wait_for_text(".strip", "running\n3")


def test_jobs_are_sorted_by_any_column(browser: Any, page: Served, service: FakeService) -> None:
    for loss in (2.5, None, 10.0, 1.5):
        progress = None if loss is None else {**STEP, "loss": loss}
        service.add(uid=ANNA, state="running", attempts=(an_attempt(),), progress=progress)
    with visiting(browser, page) as visit:
        visit.wait_for_text("table.jobs", "1.5")
        button = visit.page.get_by_role("button", name="Loss")
        rows = visit.page.locator("table.jobs tbody th a")
        for order, kind in (("4132", "ascending"), ("3142", "descending"), ("1234", None)):
            button.click()
            assert [text.split()[0] for text in rows.all_inner_texts()] == [f"#{n}" for n in order]
            assert button.locator("..").get_attribute("aria-sort") == kind


def test_jobs_are_in_the_order_in_which_they_start(
    browser: Any, page: Served, service: FakeService
) -> None:
    for state in ("failed", "queued", "queued", "succeeded", "running", "queued"):
        service.add(uid=ANNA, state=state)
    service.change(3, priority=5)
    with visiting(browser, page) as visit:
        visit.wait_for_text("table.jobs", "#5")
        visit.page.get_by_label("All", exact=True).check()
        visit.wait_for_text("table.jobs", "#1")
        rows = visit.page.locator("table.jobs tbody th a")
        assert [text.split()[0] for text in rows.all_inner_texts()] == [
            *("#5", "#3", "#2", "#6", "#4", "#1")
        ]


def test_ages_are_by_the_clock_of_the_daemon(browser: Any, daemon: Daemon) -> None:
    daemon.wait_for_state(submit(daemon, "steps=1 hang"), "running")
    slow = "{ const real = Date.now; Date.now = () => real() - 7200_000; }"
    with visiting(browser, daemon, before=slow) as visit:
        visit.show("#/jobs/1")
        visit.wait_for_text(".facts", "just now")
        assert visit.text(".facts").partition("Duration\n")[2].split("\n")[0].endswith(" s")


def test_an_alert_is_heard_once(browser: Any, daemon: Daemon) -> None:
    daemon.wait_for_state(submit(daemon, "nan hang", name="diverges"), "running")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("#alerts", "the loss is not a number")
        visit.wait_for_text("#heard", "#1 diverges: the loss is not a number")
        visit.page.evaluate("document.getElementById('heard').textContent = ''")
        daemon.client.drain("new driver")
        visit.wait_for_text("#heard", "drained")
        assert "diverges" not in visit.text("#heard")
