from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.daemon.api.fakes import FakeService


def test_a_job_that_is_over_begins_again(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    service.add(state="failed", name="tiny")
    done = zerotools("retry", "tiny")
    assert done.out == "job 2 (tiny) is queued; it begins from the start in /state/jobs/2/output\n"
    place = str(tmp_path / "again")
    assert zerotools("retry", "1", "--output-dir", place).out.endswith(f" in {place}\n")
    assert zerotools("retry", "2").err == "error: job 2 is not over: it is queued\n"


def test_an_empty_directory_is_none(zerotools: Command, service: FakeService) -> None:
    service.add(state="failed", name="tiny")
    done = zerotools("retry", "1", "--output-dir", "")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: --output-dir: is empty\nhint: name a directory")
