"""The page in a real browser: live jobs, a daemon that restarts, keys, curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.visits import PATIENCE_MS, VIEWS, submit, visiting
from tests.daemon.waiting import wait_for

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=hacked()></td></script>"
LOG = "</pre><script>hacked()</script> \x1b[31mred\x1b[0m <b>bold</b>"


def test_a_live_job_from_its_first_step_to_its_end(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=3 save=2 release from=4 steps=5 exit=0", name="tiny")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "tiny")
        visit.wait_for_text("table.jobs .state", "running")
        visit.page.click("table.jobs th a")
        visit.wait_for_text("main h1", f"#{job} tiny")
        visit.page.wait_for_selector("figure.chart canvas")
        visit.page.wait_for_function(
            "() => document.querySelector('figure.chart').getAttribute('aria-label')"
            ".includes('3 points')"
        )
        (daemon.run_dir(job) / "release").touch()
        visit.wait_for_text("main .badge", "succeeded")
        visit.page.wait_for_function(
            "() => document.querySelector('figure.chart').getAttribute('aria-label')"
            ".includes('8 points')"
        )
        visit.show("#/events")
        visit.wait_for_text("table.events", "finished")
        assert visit.text("table.events .badge.good") == "✓\nsucceeded"
        visit.show(f"#/jobs/{job}/checkpoints")
        visit.wait_for_text(".tree", "step-00000002")
        assert " 1 checkpoint, 2 B" in visit.text(".root")
        daemon.client.drain("no conversion runs here")
        visit.page.click(".tree summary")
        visit.page.get_by_role("button", name="Draw it").first.click()
        visit.wait_for_text(".empty", "step-00000002")  # the rank only pretended to save
        assert visit.page.evaluate("() => location.hash") == f"#/jobs/{job}/picture/2"
        visit.errors = [each for each in visit.errors if not each.endswith("/2/picture")]
        visit.show(f"#/jobs/{job}/checkpoints")
        visit.page.click(".tree summary")
        visit.page.get_by_role("button", name="Verify in a job").first.click()
        visit.page.get_by_role("button", name="Queue the job").click()
        visit.wait_for_text("#said", "verify")
        saved = str(daemon.client.job(job)["latest_checkpoint"]["path"])
        (newest, _) = daemon.client.jobs()
        assert newest["spec"]["script"]["command"] == ["-m", "zerotools", "verify", saved]


def test_an_open_page_survives_a_restart_of_the_daemon(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=2 hang", name="before")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "before")
        address = visit.page.url
        daemon.stop()
        visit.wait_for_text("#link", "does not answer")
        daemon.start()
        visit.page.wait_for_selector("#link.live")
        submit(daemon, "hang", name="after")
        visit.wait_for_text("table.jobs", "after")
        assert visit.page.url == address


def test_names_logs_and_reasons_are_text(browser: Any, daemon: Daemon, tmp_path: Path) -> None:
    job = submit(daemon, "steps=1 hang", name=HOSTILE)
    daemon.wait_for_state(job, "running")
    log = daemon.run_dir(job) / "rank-0.log"
    wait_for(log.exists, "the log")
    with log.open("a") as file:
        file.write(f"{LOG}\n")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "<img src=x onerror=hacked()>")
        visit.show(f"#/jobs/{job}/log")
        visit.wait_for_text("pre.log", "</pre><script>hacked()</script> red <b>bold</b>")
        assert visit.page.query_selector("main img, main script, main b") is None
        for view in (*VIEWS, "#/jobs/99"):
            visit.show(view)
            visit.page.wait_for_timeout(100)
        assert {error.partition("/v1/")[2] for error in visit.errors} == {"jobs/99"}
        visit.errors.clear()


def test_examples_show_what_is_trained(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=1 hang", name="chats")
    daemon.wait_for_state(job, "running")
    with visiting(browser, daemon) as visit:
        visit.show(f"#/jobs/{job}/examples")
        visit.wait_for_text(".example pre", "</pre><b>2 + 2?</b>\ufffd")
        assert visit.text(".example mark").startswith("It is 4. long")
        style = "(name) => getComputedStyle(document.querySelector('.example mark'))[name]"
        assert visit.page.evaluate(style, "textDecorationLine") == "underline"
        said = visit.text("main .part")
        for words in (
            *("109 tokens, 104 trained; 7 more were cut off", "first examples: 1 is cut"),
            *("3 examples, 70 % of 300 tokens trained", "1 left out: no prompt or no answer"),
            *("1 the same as an earlier one", "2 sequences of 200 tokens, 75 % full"),
            *("about 30,000 tokens, 200 sequences, 50 steps; ", "61 – 109"),
        ):
            assert words in said
        with visit.page.expect_response("**/examples?show=10&wait=10"):
            visit.page.get_by_label("How many examples").select_option("10")


def test_keys_alone(browser: Any, daemon: Daemon) -> None:
    for name in ("one", "two"):
        daemon.wait_for_state(submit(daemon, "steps=1 hang", name=name), "running")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "one")
        keyboard = visit.page.keyboard
        keyboard.press("/")
        keyboard.type("one")
        visit.page.wait_for_function(
            "() => document.querySelectorAll('.jobs tbody tr').length === 1"
        )
        keyboard.press("Tab")
        keyboard.press("?")
        visit.page.wait_for_selector("dialog[open]")
        keyboard.press("Escape")
        visit.page.wait_for_selector("dialog", state="detached")
        keyboard.press("j")
        keyboard.press("Enter")
        visit.wait_for_text("main h1", "#1 one")
        visit.page.get_by_role("button", name="Cancel", exact=True).focus()
        keyboard.press("Enter")
        visit.page.wait_for_selector("dialog[open]")
        keyboard.press("Escape")
        visit.page.wait_for_selector("dialog", state="detached")
        assert daemon.client.job(1)["state"] == "running"
        keyboard.press("2")
        visit.wait_for_text("main h1", "Machine")


def test_what_is_wrong_is_told_at_the_top(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "nan hang", name="diverges")
    daemon.wait_for_state(job, "running")
    daemon.client.drain("new driver")
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("#alerts", "the loss is not a number at step 4")
        visit.wait_for_text("#alerts", "no job starts: the queue is drained (new driver)")
        assert visit.page.title().startswith("(1) ")
        visit.page.get_by_role("button", name="Dismiss: #1 diverges").click()
        visit.page.wait_for_function("() => !document.title.startsWith('(')")
        visit.show(f"#/jobs/{job}")
        visit.wait_for_text("main", "not a number")


def test_jobs_are_compared_and_curves_are_changed(browser: Any, daemon: Daemon) -> None:
    for number in (1, 2):
        data = {"text": [__file__], "sequence_length": 16}
        job = submit(daemon, "steps=40 exit=0", name=f"run-{number}", seed=number, data=data)
        daemon.wait_for_end(job)
    with visiting(browser, daemon) as visit:
        visit.page.get_by_label("All", exact=True).check()
        for number in (1, 2):
            visit.page.get_by_label(f"Compare #{number} run-{number}").check()
        visit.page.get_by_role("link", name="Compare 2 jobs").click()
        visit.wait_for_text(".u-legend", "#1 run-1: loss")
        visit.wait_for_text(".u-legend", "#2 run-2: loss")
        assert "".join(visit.text(".u-legend").split()).startswith("step40"), "without a mouse"
        assert visit.page.locator(".differ tbody tr").all_inner_texts() == ["seed\t1\t2"]
        visit.page.get_by_label("Tokens", exact=True).check()
        visit.page.wait_for_function(
            "() => /^tokens[1-9]/.test(document.querySelector('.u-legend').textContent)"
        )
        visit.page.get_by_label("Log scale").check()
        visit.page.get_by_label("Ignore outliers").check()
        visit.page.get_by_label("Relative time").check()
        visit.page.get_by_label("Smoothing").fill("0.9")
        visit.page.get_by_label("Steps", exact=True).check()
        visit.page.get_by_role("button", name="Take out #2 run-2").click()
        visit.page.wait_for_function(
            "() => !document.querySelector('.u-legend').innerText.includes('run-2')"
        )
        visit.page.get_by_text("The numbers").click()
        visit.wait_for_text(".numbers table", "40")


def test_the_focus_stays_where_it_is_as_the_page_changes(browser: Any, daemon: Daemon) -> None:
    for name in ("one", "two", "three"):
        daemon.wait_for_state(submit(daemon, "steps=3 save=2 release exit=0", name=name), "running")
    focused = "() => document.activeElement.textContent"
    with visiting(browser, daemon) as visit:
        visit.wait_for_text("table.jobs", "one")
        visit.page.get_by_role("link", name="#1 one").focus()
        (daemon.run_dir(3) / "release").touch()
        visit.page.wait_for_function(
            "() => !document.querySelector('.jobs').innerText.includes('three')"
        )
        assert visit.page.evaluate(focused) == "#1 one"
        visit.show("#/jobs/1/checkpoints")
        visit.page.click(".tree summary")
        assert "step-00000002" in visit.page.evaluate(focused)
        with visit.page.expect_response("**/checkpoints", timeout=PATIENCE_MS):
            pass
        with visit.page.expect_response("**/v1/jobs/1"):
            pass
        assert "step-00000002" in visit.page.evaluate(focused)
        assert visit.page.locator(".tree > li > details").first.get_attribute("open") is not None
