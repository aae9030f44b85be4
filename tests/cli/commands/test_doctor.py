"""The page of `zerotools doctor`, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from zerotools.cli.commands.doctor import lines_of
from zerotools.jobs.doctor.finding import ok, problem, warning


def test_problems_come_first_with_what_to_do() -> None:
    findings = [
        ok("torch", "2.9"),
        warning("clock", "is late", "set it"),
        problem("disk", "is full\x1b[2J", "free it"),
    ]
    assert lines_of(findings) == [
        "problem: disk: is full\\x1b[2J",
        "    free it",
        "warning: clock: is late",
        "    set it",
        "",
        "ok  torch  2.9",
    ]


def test_a_problem_is_exit_status_1(zerotools: Command) -> None:
    done = zerotools("doctor", "--json", "--python", "/bin/false")
    assert done.status == 1
    found = {each["what"]: each for each in json.loads(done.out)["findings"]}
    assert found["torch"]["level"] == "problem"
    assert found["daemon"]["level"] == "ok"
    assert "problem: torch: /bin/false" in zerotools("doctor", "--python", "/bin/false").out


def test_a_report_is_written_once(zerotools: Command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = zerotools("doctor", "--report", str(report))
    assert f"wrote {report}" in done.err
    assert json.loads(report.read_text())["schema"] == "zerotools.report/1"
    again = zerotools("doctor", "--python", "/bin/false", "--report", str(report))
    assert (again.status, "exists" in again.err) == (2, True)
