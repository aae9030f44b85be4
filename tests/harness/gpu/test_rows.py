"""The table of checks: each is a process of its own, and whatever it does is one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.gpu.checks import Found
from harness.gpu.looks import CHECKS
from harness.gpu.rows import (
    LINES,
    LOG,
    MEMORY,
    TABLE,
    Row,
    answer_of,
    installed,
    run_all,
    summary,
    write,
)

CPU_SKIPS = {name for name, check in CHECKS.items() if check.not_on_cpu is not None}


@pytest.mark.torch
@pytest.mark.dear(10, "two processes that import torch")
def test_a_check_that_crashes_is_a_row_and_the_next_is_run(tmp_path: Path) -> None:
    checks = {"unknown": CHECKS["versions"], "attention": CHECKS["attention"]}
    crashed, attended = run_all("cpu", 500.0, tmp_path, checks)
    assert (crashed.state, crashed.found) == ("FAIL", "KeyError: 'unknown'")
    assert (attended.state, attended.expected) == ("ok", "repeated heads as shared ones, 1e-5")
    assert "== attention" in (tmp_path / LOG).read_text()


def test_what_has_no_time_is_skipped_and_what_a_cpu_cannot_do_says_why(tmp_path: Path) -> None:
    checks = {name: CHECKS[name] for name in ("versions", "NVML answers")}
    rows = list(run_all("cpu", 1.0, tmp_path, checks))
    assert [(row.state, row.found) for row in rows] == [
        ("skip", "the budget is used up"),
        ("skip", "a CPU has no driver"),
    ]
    assert CHECKS.keys() > CPU_SKIPS
    assert all(CHECKS[name].not_on_cpu for name in CPU_SKIPS)


def test_a_check_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (row,) = run_all("cpu", 500.0, tmp_path, {"versions": CHECKS["versions"]._replace(seconds=0)})
    assert (row.state, row.found) == ("FAIL", "no end after 0 s")


def test_a_check_that_ends_without_an_answer_is_a_failed_row() -> None:
    answer = '{"found": "b", "ok": null, "memory": ["c"]}'
    assert answer_of(["a", answer]) == Found("b", None, ["c"])
    for lines in ([], ["a line of a thread"], ["[]"], ['{"ok": true}']):
        words = f"no answer in its last line: {''.join(lines)}"
        assert answer_of(lines) == Found(words, ok=False)


def test_failures_are_said_again_at_the_end(tmp_path: Path) -> None:
    memory = ("stage 1, reserved: 10.00 MiB predicted, 9.00 held",)
    rows = [
        Row("versions", "a torch", "torch 2.13.0, no card", "ok", 1.0),
        Row("attention", "1e-5", "3.0e-02 apart", "FAIL", 2.0, memory),
        Row("NVML answers", "each in 2 s", "a CPU has no driver", "skip", 0.0),
    ]
    last = "ran 2, failed 1, skipped 1, torch 2.13.0, no card"
    assert summary(rows) == ["FAIL attention: 3.0e-02 apart", last]
    write(rows, tmp_path)
    table = (tmp_path / TABLE).read_text().splitlines()
    assert table[1] == "attention | 1e-5 | 3.0e-02 apart | FAIL | 2.0"
    assert table[-1] == last
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [line["state"] for line in lines] == ["ok", "FAIL", "skip"]
    assert (tmp_path / MEMORY).read_text() == f"attention: {memory[0]}\n"


def test_wheels_come_from_the_folder_alone(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    assert installed(wheels, tmp_path).found == f"{wheels} has none"
    (wheels / "nothing-1.0-py3-none-any.whl").write_bytes(b"no archive")
    row = installed(wheels, tmp_path)
    assert (row.state, "nothing" in row.found) == ("FAIL", True)
