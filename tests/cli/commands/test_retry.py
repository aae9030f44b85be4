from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService


def test_a_job_that_is_over_begins_again(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    service.add(state="failed", name="tiny")
    done = zerotools("retry", "tiny", "--from-start")
    assert done.out == "job 2 (tiny) is queued; it starts from step 1 in /state/jobs/2/output\n"
    place = str(tmp_path / "again")
    assert zerotools("retry", "1", "--output-dir", place).out.endswith(f" in {place}\n")
    assert zerotools("retry", "2").err == "error: job 2 is not over: it is queued\n"


def test_an_empty_directory_is_none(zerotools: Command, service: FakeService) -> None:
    service.add(state="failed", name="tiny")
    done = zerotools("retry", "1", "--output-dir", "")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: --output-dir: is empty\nhint: name a directory")


def test_a_job_that_is_over_continues_from_its_newest_checkpoint(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="stopped", output_dir="/runs/tiny")
    assert zerotools("retry", "1") == (
        0,
        "job 2 (tiny) is queued; it resumes from the newest checkpoint in /runs/tiny\n",
        "",
    )
    again = json.loads(zerotools("retry", "1", "--json").out)["jobs"][0]
    assert (again["id"], again["state"]) == (3, "queued")


def test_of_an_array_those_that_have_not_succeeded_continue(
    zerotools: Command, service: FakeService
) -> None:
    for index, state in enumerate(("failed", "succeeded", "stopped")):
        place = {"id": 1, "index": index, "size": 3, "label": str(index)}
        service.add(state=state, name="tiny", array=place, output_dir=f"/runs/{index}")
    first, second, array = zerotools("retry", "@1").out.splitlines()
    assert first == "job 4 (tiny) is queued; it resumes from the newest checkpoint in /runs/0"
    assert second.startswith("job 5 (tiny) is queued; it resumes ")
    assert array == "together the jobs are array @4"
    whole = zerotools("retry", "@1", "--from-start").out.splitlines()
    assert [line.split(";")[1].split(" in ")[0] for line in whole[:-1]] == [
        " it starts from step 1"
    ] * 3
    assert zerotools("retry", "@1", "--nodes", "2").status == 2


def test_a_job_that_is_not_over_is_left_alone(zerotools: Command, service: FakeService) -> None:
    service.add(state="running")
    done = zerotools("retry", "1")
    assert (done.status, done.err) == (5, "error: job 1 is not over: it is running\n")
    assert zerotools("retry", "9").err == "error: job 9 does not exist\n"
    said = zerotools("retry", "1", "--from-start", "--nodes", "2").err
    assert said.startswith("error: --nodes is for a job that continues")


def test_another_run_of_a_program_that_has_succeeded_is_said_to_be_one(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="succeeded", output_dir="/runs/mine")
    queued, note = zerotools("retry", "1").out.splitlines()
    assert queued.startswith("job 2 (tiny) is queued; it ")
    assert note == "note: job 1 had already succeeded; its program runs again"
    assert "only you know whether it has more to do" in zerotools("retry", "--help").out


def test_a_number_of_nodes_is_for_slurm_and_may_be_a_range(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="stopped")
    refused = zerotools("retry", "1", "--nodes", "4-").err
    assert refused.startswith("error: --nodes 4-: is not a number of nodes")
    done = zerotools("retry", "1", "--nodes", "2-4")
    assert (done.status, len(service.views)) == (2, 1)
    assert "for jobs submitted to Slurm without a daemon" in done.err
