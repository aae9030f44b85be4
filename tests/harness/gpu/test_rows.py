"""The table of checks: each is a process of its own, and whatever it does is one row."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gpu import daemon_jobs, figures, machine, predicted
from harness.gpu import rows as gpu_rows
from harness.gpu.checks import CORES, Found, own_cores
from harness.gpu.looks import CHECKS
from harness.gpu.rows import answer_of, in_order, run_all
from harness.gpu.table import LOG

CPU_SKIPS = {name for name, check in CHECKS.items() if check.not_on_cpu is not None}


@pytest.mark.torch
@pytest.mark.dear(10, "two processes that import torch")
def test_a_check_that_crashes_is_a_row_and_the_next_is_run(tmp_path: Path) -> None:
    checks = {"unknown": CHECKS["versions"], "attention": CHECKS["attention"]}
    crashed, attended = run_all("cpu", 500.0, tmp_path, checks)
    assert (crashed.state, crashed.found) == ("FAIL", "KeyError: 'unknown'")
    assert (attended.state, attended.expected) == ("ok", "repeated heads as shared ones, 1e-5")
    assert "== attention" in (tmp_path / LOG).read_text()


def test_what_has_no_time_is_late_and_what_a_cpu_cannot_do_says_why(tmp_path: Path) -> None:
    checks = {name: CHECKS[name] for name in ("versions", "NVML answers")}
    rows = list(run_all("cpu", 1.0, tmp_path, checks))
    assert [(row.state, row.found) for row in rows] == [
        ("late", "the budget is used up"),
        ("skip", "a CPU has no driver"),
    ]
    assert CHECKS.keys() > CPU_SKIPS
    assert all(CHECKS[name].not_on_cpu for name in CPU_SKIPS)


def test_a_check_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (row,) = run_all("cpu", 500.0, tmp_path, {"versions": CHECKS["versions"]._replace(seconds=0)})
    assert (row.state, row.found) == ("FAIL", "no end after 0 s")


def test_checks_that_share_the_device_run_side_by_side_and_in_their_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_rows.os, "cpu_count", lambda: 2 * gpu_rows.CORES_PER_LANE)
    at_once = CHECKS["versions"]._replace(seconds=0)
    alone = at_once._replace(shared=False)
    checks = {"a": alone, "b": at_once, "c": at_once, "d": alone}
    assert list(in_order(checks)) == ["b", "c", "a", "d"]
    names = [row.name for row in run_all("cpu", 500.0, tmp_path, checks)]
    assert (names[0], {*names[1:3]}, names[3]) == ("a", {"b", "c"}, "d")
    assert [path.name for path in tmp_path.iterdir()] == [LOG]
    assert sorted((tmp_path / LOG).read_text().split()) == [*["=="] * 4, "a", "b", "c", "d"]


def test_no_check_beside_others_reads_what_the_driver_has_given_out() -> None:
    """Memory of the card, contexts, leases of a daemon and speed are those of all processes."""
    alone = {name for name, check in CHECKS.items() if not check.shared}
    assert alone == {
        *machine.CHECKS,
        *predicted.CHECKS,
        *daemon_jobs.CHECKS,
        *figures.CHECKS,
    }


def test_a_check_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    check = CHECKS["versions"]
    found = [gpu_rows.lanes_of([check] * count, 16) for count in (1, 2, 8)]
    assert found == [(1, 16), (2, 8), (4, 4)]
    assert gpu_rows.lanes_of([check] * 8, 2) == (1, 2)
    assert gpu_rows.lanes_of([check._replace(shared=False)] * 8, 16) == (1, 16)
    monkeypatch.setenv(CORES, "4")
    assert own_cores() == 4


def test_a_check_that_the_budget_ends_is_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_rows, "LEAST_SECONDS", 0.0)
    (row,) = run_all("cpu", 0.1, tmp_path, {"versions": CHECKS["versions"]})
    assert (row.state, row.found) == ("late", "the budget was used up after 0 s of its 120")


def test_a_check_that_ends_without_an_answer_is_a_failed_row() -> None:
    answer = '{"found": "b", "ok": null, "memory": ["c"]}'
    assert answer_of(["a", answer]) == Found("b", None, ["c"])
    for lines in ([], ["a line of a thread"], ["[]"], ['{"ok": true}']):
        words = f"no answer in its last line: {''.join(lines)}"
        assert answer_of(lines) == Found(words, ok=False)
