"""`zerotools clean` for jobs that Slurm runs without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import programs
from zerotools.core.errors import BadRequest
from zerotools.jobs.slurm.job_directory import END, JobDirectory, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job


class Home:
    """The records of a few jobs of one user."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / "hömé"
        self.jobs = SlurmJobs(programs(directory, squeue="exit 0"), self.path)

    def add(self, number: int, ended: float | None = 100.0, **values: Any) -> JobDirectory:
        """Submit a job, which Slurm calls `number`."""
        commands = programs(self.directory, sbatch=f"cat > $0.script; echo {number}")
        attended = values.pop("attended", False)
        found, _ = submit_job(commands, self.path, job({}, **values), attended=attended)
        if ended is not None:
            end = {"state": "succeeded", "reason": None, "time": ended}
            write_record(found.submission_path(1) / END, end)
        return found

    def clean(self, **request: Any) -> tuple[list[str], list[tuple[str, str]]]:
        """The removed jobs, and the kept jobs with the reasons."""
        answer = self.jobs.clean(request)
        kept = [(each["id"], each["why"]) for each in answer["kept"]]
        return [each["id"] for each in answer["jobs"]], kept


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_ended_jobs_are_removed_and_others_stay(home: Home) -> None:
    old, new = home.add(1, ended=100.0), home.add(2, ended=200.0)
    opened, daemons = home.add(3, ended=None), home.add(4, attended=True)
    assert home.clean(keep=1, dry_run=True) == (["slurm:1"], [])
    assert old.path.exists()
    assert home.clean(keep=1) == (["slurm:1"], [])
    assert not old.path.exists()
    assert home.clean(states=["failed"]) == ([], [])
    assert home.clean() == (["slurm:2"], [])
    assert not new.path.exists()
    assert opened.path.exists()
    assert daemons.path.exists()
    assert len(list(home.path.iterdir())) == 2
    assert home.clean(jobs=["slurm:3"]) == (
        [],
        [("slurm:3", "it is queued; only a finished job can be removed")],
    )
    with pytest.raises(BadRequest, match="a daemon has some of these jobs in its queue"):
        home.clean(jobs=["slurm:4"])
    with pytest.raises(BadRequest, match="--logs-only is for jobs of a daemon"):
        home.clean(logs_only=True)


def test_output_and_what_an_unfinished_job_names_stay(home: Home) -> None:
    found = home.add(1)
    (found.path / "output" / "step-5").mkdir(parents=True)
    user = home.add(2, ended=None, name=f"from {found.path}")
    _, [(_, why)] = home.clean()
    assert why.endswith("type: zerotools clean --outputs slurm:1")
    request = {"jobs": ["slurm:1"], "outputs": True}
    assert home.clean(**request) == ([], [("slurm:1", f"an unfinished job names {found.path}")])
    write_record(user.submission_path(1) / END, {"state": "failed", "time": 1.0})
    assert home.clean(**request) == (["slurm:1"], [])
    assert not found.path.exists()


def test_a_job_that_is_submitted_again_meanwhile_is_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, rename = home.add(1), Path.rename

    def submit_first(path: Path, target: Path) -> Path:
        (path / "submissions" / "2").mkdir(exist_ok=True)
        return rename(path, target)

    monkeypatch.setattr("pathlib.Path.rename", submit_first)
    assert home.clean() == ([], [("slurm:1", "it was submitted again")])
    assert found.path.exists()
