"""Whatever becomes of the process that hands a job to Slurm, it is handed over once."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.jobs.slurm.fake_programs import calls, programs
from tests.jobs.tables.test_slurm import job
from zerotools.jobs.slurm.job_directory import END, JobDirectory, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotoolsd.slurm.watcher.submit_once import handed_over, is_told, key_of, note_told


def hand(tmp_path: Path) -> JobDirectory:
    home = tmp_path / "home"
    commands = programs(tmp_path, squeue="exit 0")
    job_dir = tmp_path / "jobs" / "7"
    job_dir.mkdir(parents=True, exist_ok=True)
    key = key_of(job_dir, "tiny")
    return handed_over(commands, SlurmJobs(commands, home), home, job({}), key)


def test_an_attempt_finds_what_the_one_before_has_left(tmp_path: Path) -> None:
    first = hand(tmp_path)
    assert hand(tmp_path) == first
    assert len(calls(tmp_path, "sbatch")) == 1
    assert (first.job() or {})["attended"] is True


def test_an_end_is_told_once_and_an_attempt_after_that_submits_again(tmp_path: Path) -> None:
    directory = hand(tmp_path)
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    assert hand(tmp_path).submissions() == [1]
    assert not is_told(directory)
    note_told(directory, tmp_path, 64)
    assert not is_told(directory)  # whoever tells it may be killed before it has
    write_record(tmp_path / "exit.json", {"ranks": [{"exit_code": 64}]})
    assert hand(tmp_path).submissions() == [1, 2]
    assert len(calls(tmp_path, "sbatch")) == 2


def test_a_daemon_that_has_lost_its_state_does_not_find_jobs_of_before(tmp_path: Path) -> None:
    first = hand(tmp_path)
    assert hand(tmp_path) == first
    shutil.rmtree(tmp_path / "jobs")
    assert hand(tmp_path) != first


def test_jobs_of_two_daemons_are_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert key_of(tmp_path / "a", "x") != key_of(tmp_path / "b", "x")
