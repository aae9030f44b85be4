from __future__ import annotations

from pathlib import Path

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService


def test_a_job_gets_another_priority_by_its_name(zerotools: Command, service: FakeService) -> None:
    service.add(state="queued", name="tiny")
    service.add(state="queued", name="wide")
    assert zerotools("priority", "wide", "-3") == (0, "job 2 (wide) has priority -3\n", "")
    rows = [line.split()[:3] for line in zerotools("queue").out.splitlines()]
    assert rows == [["id", "prio", "name"], ["1", "0", "tiny"], ["2", "-3", "wide"]]
    assert "priority    -3" in zerotools("show", "wide").out
    done = zerotools("priority", "wide", "11")
    assert (done.status, service.views[2].priority) == (2, -3)
    assert "11 is not in the range -10<=x<=10" in done.err


def test_a_job_is_submitted_with_a_priority(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job_file = tmp_path / "tiny.toml"
    job_file.write_text(JOB, encoding="utf-8")
    assert zerotools("submit", str(job_file), "--priority", "4").status == 0
    assert service.views[1].priority == 4
