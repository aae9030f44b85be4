"""Logs that a job writes to harm whoever reads them, or their browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.visits import submit, visiting
from tests.daemon.waiting import wait_for

pytestmark = pytest.mark.browser
LINES = "() => [...document.querySelectorAll('.log .line')].map((line) => line.textContent)"
SHOWN = """() => [...document.querySelectorAll('.log .line:not([hidden])')]
  .map((line) => line.textContent)"""
COUNT = "() => document.querySelectorAll('.log .line').length"
ODD = (
    b"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07 \xc2\x9b1mc1\xc2\x85 \x00nul\x07"
    b" safe\xe2\x80\xae txt.exe\xe2\x81\xa6 \xff<b>\n"
)


def test_a_log_is_shown_as_a_terminal_would_and_no_line_fills_the_page(
    browser: Any, daemon: Daemon
) -> None:
    job = submit(daemon, "steps=1 hang", name="writes")
    daemon.wait_for_state(job, "running")
    log = daemon.run_dir(job) / "rank-0.log"
    wait_for(log.exists, "the log")
    with visiting(browser, daemon) as visit, log.open("ab", buffering=0) as file:
        visit.show(f"#/jobs/{job}/log")
        file.write(ODD)
        shown = "red link c1 nul safe\ufffd txt.exe\ufffd \ufffd<b>"
        visit.wait_for_text(".log", shown)
        file.write(b"x" * (1 << 20))
        visit.wait_for_text(".log", "1,044,576 more characters")
        file.write(b"\r10%\r20%")
        visit.wait_for_text(".log .line.open", "20%")
        file.write(b"\rwhole\n" + b"y\n" * 200_000 + b"last\n")
        visit.wait_for_text(".log", "last")
        assert visit.page.evaluate(COUNT) <= 5000
        assert max(len(line) for line in visit.page.evaluate(LINES)) < 5000


def test_whoever_reads_further_up_is_left_there(browser: Any, daemon: Daemon) -> None:
    job = submit(daemon, "steps=1 hang", name="writes")
    daemon.wait_for_state(job, "running")
    log = daemon.run_dir(job) / "rank-0.log"
    wait_for(log.exists, "the log")
    with visiting(browser, daemon) as visit, log.open("ab", buffering=0) as file:
        file.write(b"".join(b"%d\n" % number for number in range(400)))
        visit.show(f"#/jobs/{job}/log")
        visit.wait_for_text(".log", "399")
        place = visit.page.locator(".log")
        place.focus()
        visit.page.keyboard.press("PageUp")
        visit.page.wait_for_function("() => !document.querySelector('.bar input').checked")
        before = place.evaluate("(log) => log.scrollTop")
        file.write(b"more\n")
        visit.wait_for_text(".log", "more")
        assert place.evaluate("(log) => log.scrollTop") <= before


def test_lines_without_the_words_that_are_looked_for_are_hidden(
    browser: Any, daemon: Daemon
) -> None:
    job = submit(daemon, "steps=1 hang", name="writes")
    daemon.wait_for_state(job, "running")
    log = daemon.run_dir(job) / "rank-0.log"
    wait_for(log.exists, "the log")
    with visiting(browser, daemon) as visit, log.open("ab", buffering=0) as file:
        file.write(b"look: loss 1.5\nlook: loss nan\nlook: saved\n")
        visit.show(f"#/jobs/{job}/log")
        visit.wait_for_text(".log", "look: saved")
        field = visit.page.get_by_label("Find in the log")

        def shown(words: str) -> list[str]:
            field.fill(words)
            return [line.strip() for line in visit.page.evaluate(SHOWN)]

        assert shown("look LOSS") == ["look: loss 1.5", "look: loss nan"]
        assert shown("look -nan") == ["look: loss 1.5", "look: saved"]
        assert shown(r"look loss.\d") == ["look: loss 1.5"]
        file.write(b"look: loss 2.5\nlook: other\n")
        visit.wait_for_text(".log", "look: loss 2.5")
        visit.page.wait_for_function("() => document.querySelector('.bar output').value[0] === '2'")
        assert "look: other" in shown("look other")
        field.fill("")
        assert visit.page.locator(".bar output").inner_text() == ""
