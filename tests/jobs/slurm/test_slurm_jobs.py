"""What Slurm says of an end outlasts its own memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import calls, programs
from zerotools.jobs.slurm.job_directory import END, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job


@pytest.mark.parametrize(
    ("said", "state"), [("CANCELLED", "cancelled"), ("TIMEOUT", "failed"), ("PENDING", "queued")]
)
def test_a_job_stays_what_it_was_when_slurm_has_forgotten_it(
    tmp_path: Path, said: str, state: str
) -> None:
    home = tmp_path / "home"
    directory, _ = submit_job(programs(tmp_path), home, job({}))
    token = (directory.submission(1) or {})["token"]
    line = f"4711\\t{said}\\tNone\\tzerotools:{token}\\t1\\t\\tjob\\n"
    jobs = SlurmJobs(programs(tmp_path, squeue=f"printf '{line}'"), home)
    assert jobs.job("4711")["state"] == state
    forgotten = SlurmJobs(programs(tmp_path, squeue="exit 0"), home).job("4711")
    assert forgotten["state"] == state
    down = "echo 'Unable to contact slurm controller' >&2; exit 1"
    assert SlurmJobs(programs(tmp_path, squeue=down), home).job("4711")["state"] == state
    words = {"CANCELLED": "cancelled in Slurm", "TIMEOUT": "Slurm ended the job: timeout"}
    assert words.get(said, "PENDING") in forgotten["reason"] or state == "queued"


def test_who_follows_a_job_asks_the_controller_only_every_few_seconds(tmp_path: Path) -> None:
    home, listed = tmp_path / "home", r"printf '4711\tPENDING\tNone\t\t1\t\tjob\n'"
    jobs = SlurmJobs(programs(tmp_path, squeue=listed), home)
    submit_job(programs(tmp_path, squeue=listed), home, job({}))
    for _ in range(5):
        assert jobs.job("4711")["state"] == "queued"
    assert len(calls(tmp_path, "squeue")) == 1
    jobs.cancel("4711")
    assert len(calls(tmp_path, "squeue")) == 3  # before the scancel, and after it


def test_jobs_that_have_ended_are_not_read_to_list_the_others(tmp_path: Path) -> None:
    home, spec = tmp_path / "home", job({}, name="ended", output_dir=str(tmp_path / "out"))
    ended, _ = submit_job(programs(tmp_path), home, spec)
    submit_job(programs(tmp_path), home, job({}, name="open"))
    write_record(ended.submission_path(1) / END, {"state": "succeeded", "reason": None})
    (ended.path / "view.json").mkdir()  # reading it would fail
    (ended.path / "job.json").write_text("{")
    jobs = SlurmJobs(programs(tmp_path, squeue="exit 0"), home)
    assert [each["name"] for each in jobs.jobs(ended=False)] == ["open"]
    assert len(jobs.jobs()) == 2
    jobs.check_output_dir_free(spec)
    ended.new_submission("token")
    assert len(jobs.jobs(ended=False)) == 2


def test_the_controller_is_asked_once_for_many_jobs(tmp_path: Path) -> None:
    home, pending = tmp_path / "home", r"printf '%s\tPENDING\tNone\t\t1\t\tjob\n' 1 2 3"
    for number in (1, 2, 3):
        made = programs(tmp_path, sbatch=f"cat > $0.script; echo {number}", squeue=pending)
        submit_job(made, home, job({}))
    jobs = SlurmJobs(programs(tmp_path, squeue=pending), home)
    found = jobs.jobs_of(["slurm:1", "3", "slurm:2"])
    assert {each: view["id"] for each, view in found.items()} == {
        "slurm:1": "slurm:1",
        "3": "slurm:3",
        "slurm:2": "slurm:2",
    }
    assert {view["state"] for view in found.values()} == {"queued"}
    assert len(calls(tmp_path, "squeue")) == 1


def test_only_the_records_of_the_newest_jobs_are_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for count in range(3):
        found, _ = submit_job(
            programs(tmp_path), home, job({}, name=f"j{count}"), attended=not count
        )
        write_record(found.submission_path(1) / END, {"state": "succeeded", "reason": None})
        os.utime(found.path / "job.json", (count, count))
    (home / found.path.name / "view.json").mkdir()
    jobs = SlurmJobs(programs(tmp_path), home)
    assert [each["name"] for each in jobs.jobs(most=2)] == ["j2", "j1"]
    assert [each["name"] for each in jobs.jobs(attended=False, name="j0")] == []
    assert [each["name"] for each in jobs.jobs(name="j0")] == ["j0"]
