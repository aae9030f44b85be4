from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.api.fakes import FakeService


def test_a_job_that_is_over_goes_on_as_a_new_one(zerotools: Command, service: FakeService) -> None:
    service.add(state="stopped", output_dir="/runs/tiny")
    assert zerotools("resume", "1") == (
        0,
        "job 2 (tiny) is queued; it resumes from the newest checkpoint in /runs/tiny\n",
        "",
    )
    again = json.loads(zerotools("resume", "1", "--json").out)["jobs"][0]
    assert (again["id"], again["state"]) == (3, "queued")


def test_a_job_that_is_not_over_is_left_alone(zerotools: Command, service: FakeService) -> None:
    service.add(state="running")
    done = zerotools("resume", "1")
    assert (done.status, done.err) == (5, "error: job 1 is not over: it is running\n")
    assert zerotools("resume", "9").err == "error: there is no job 9\n"


def test_another_run_of_a_program_that_has_succeeded_is_said_to_be_one(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="succeeded", output_dir="/runs/mine")
    queued, note = zerotools("resume", "1").out.splitlines()
    assert queued.startswith("job 2 (tiny) is queued; it ")
    assert note == "note: job 1 had succeeded: this is another run of its program"
    assert "so it runs again and gets its newest" in zerotools("resume", "--help").out


def test_a_number_of_nodes_is_for_slurm_and_may_be_a_range(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="stopped")
    refused = zerotools("resume", "1", "--nodes", "4-").err
    assert refused.startswith("error: --nodes 4-: is not a number of nodes")
    done = zerotools("resume", "1", "--nodes", "2-4")
    assert (done.status, len(service.views)) == (2, 1)
    assert "for jobs that were submitted to Slurm without a daemon" in done.err
