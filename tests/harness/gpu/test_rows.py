"""The table of checks: each is a process of its own, and whatever it does is one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.gpu.looks import CHECKS
from harness.gpu.rows import LINES, TABLE, Row, answer_of, run_all, summary, write


@pytest.mark.torch
@pytest.mark.dear(10, "two processes that import torch")
def test_a_check_that_crashes_is_a_row_and_the_next_is_run(tmp_path: Path) -> None:
    checks = {"unknown": CHECKS["versions"], "attention": CHECKS["attention"]}
    crashed, attended = run_all("cpu", 500.0, tmp_path, checks)
    assert (crashed.state, crashed.found) == ("FAIL", "KeyError: 'unknown'")
    assert (attended.state, attended.expected) == ("ok", "repeated heads as shared ones, 1e-5")
    assert "== attention" in (tmp_path / "log.txt").read_text()


def test_what_has_no_time_or_no_device_is_skipped_and_says_so(tmp_path: Path) -> None:
    checks = {name: CHECKS[name] for name in ("versions", "NVML answers")}
    rows = list(run_all("cpu", 1.0, tmp_path, checks))
    assert [(row.state, row.found) for row in rows] == [
        ("skip", "the budget is used up"),
        ("skip", "not on a cpu"),
    ]


def test_a_check_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (row,) = run_all("cpu", 500.0, tmp_path, {"versions": CHECKS["versions"]._replace(seconds=0)})
    assert (row.state, row.found) == ("FAIL", "no end after 0 s")


def test_a_check_that_ends_without_an_answer_is_a_failed_row() -> None:
    assert answer_of(["a", '{"found": "b", "ok": true}']) == ("b", "ok")
    for lines in ([], ["a line of a thread"], ["[]"], ['{"ok": true}']):
        assert answer_of(lines) == (f"no answer in its last line: {''.join(lines)}", "FAIL")


def test_failures_are_said_again_at_the_end(tmp_path: Path) -> None:
    rows = [
        Row("versions", "a torch", "torch 2.13.0, no card", "ok", 1.0),
        Row("attention", "1e-5", "3.0e-02 apart", "FAIL", 2.0),
        Row("NVML answers", "each in 2 s", "not on a cpu", "skip", 0.0),
    ]
    last = "ran 2, failed 1, skipped 1, torch 2.13.0, no card"
    assert summary(rows) == ["FAIL attention: 3.0e-02 apart", last]
    write(rows, tmp_path)
    table = (tmp_path / TABLE).read_text().splitlines()
    assert table[1] == "attention | 1e-5 | 3.0e-02 apart | FAIL | 2.0"
    assert table[-1] == last
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [line["state"] for line in lines] == ["ok", "FAIL", "skip"]
