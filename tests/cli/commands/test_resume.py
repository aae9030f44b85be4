from __future__ import annotations

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService

NOTE = (
    "note: zerotools resume is now zerotools retry (for a held job: zerotools release); the old "
    "name resume works until 0.5\n"
)


def test_the_old_name_continues_jobs_that_are_over_and_those_that_are_held(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="stopped", output_dir="/runs/tiny")
    said = "job 2 (tiny) is queued; it resumes from the newest checkpoint in /runs/tiny\n"
    assert zerotools("resume", "1") == (0, said, NOTE)
    service.add(state="held", reason="its record cannot be read")
    said = "job 3 (tiny) is not held any more: it is queued\n"
    assert zerotools("resume") == (0, said, NOTE)
    assert NOTE not in zerotools("retry", "1").err


def test_a_number_of_nodes_is_for_slurm_for_a_held_job_too(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="held", reason="its record cannot be read")
    done = zerotools("resume", "--nodes", "2")
    assert (done.status, done.out) == (2, "")
    assert "--nodes is only for jobs submitted to Slurm without a daemon" in done.err
    assert service.views[1].state == "held"
