from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import calls, programs
from zerotools.cli.job_actions import slurm_submission
from zerotools.cli.job_actions.slurm_submission import members_for_slurm, submit_to_slurm
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.client.submission_conflicts import Submission
from zerotools.jobs.slurm.job_directory import END, job_directories, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jobs go, with programs of Slurm that know none of them."""
    commands = programs(tmp_path, squeue="exit 0")
    monkeypatch.setenv("ZEROTOOLS_SLURM_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(slurm_submission, "SlurmCommands", lambda: commands)
    monkeypatch.setattr(slurm_submission, "_check_here", lambda submission: None)
    return tmp_path / "home"


def submit(
    submissions: Sequence[Submission],
    after: str | None = None,
    key: str | None = None,
    *,
    dry_run: bool = False,
) -> None:
    def terms(numbers_of: object) -> dict[str, object]:
        assert callable(numbers_of)
        condition = {"condition": "ok"}
        return {} if after is None else {"after": [{"job": numbers_of(after)[0], **condition}]}

    submit_to_slurm(submissions, terms, None, key=key, dry_run=dry_run, follow=False, as_json=False)


def test_each_job_of_a_sweep_is_submitted_under_one_key(home: Path) -> None:
    whole = Submission("job.toml", job({}))
    members = members_for_slurm(whole, {"seed": [1, 2, 3]}, None)
    submit(members, key="mine")
    submit(members, key="mine")
    assert len(job_directories(home)) == 3
    assert len(calls(home.parent, "sbatch")) == 3


def test_a_job_is_not_submitted_after_one_that_has_failed_long_ago(home: Path) -> None:
    directory, _ = submit_job(programs(home.parent, squeue="exit 0"), home, job({}))
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    with pytest.raises(BadRequest, match="waits for success, but job slurm:4711 is failed"):
        submit([Submission("b.toml", job({}))], after="slurm:4711")
    assert len(calls(home.parent, "sbatch")) == 1


def test_one_that_has_succeeded_is_not_waited_for(home: Path) -> None:
    directory, _ = submit_job(programs(home.parent, squeue="exit 0"), home, job({}))
    write_record(directory.submission_path(1) / END, {"state": "succeeded", "reason": None})
    submit([Submission("b.toml", job({}))], after="slurm:4711")
    assert "--dependency" not in calls(home.parent, "sbatch")[-1]


def test_a_number_that_slurm_does_not_know_is_refused(home: Path) -> None:
    with pytest.raises(BadRequest, match="Slurm has no job with this number"):
        submit([Submission("b.toml", job({}))], after="slurm:99")


def test_no_two_jobs_write_into_one_directory(home: Path, tmp_path: Path) -> None:
    mine = Submission("a.toml", job({}, output_dir=str(tmp_path / "runs")))
    submit([mine], key="first")
    (tmp_path / "other").symlink_to(tmp_path / "runs")
    again = Submission("b.toml", job({}, output_dir=str(tmp_path / "other")))
    with pytest.raises(BadRequest, match=r"b.toml: output_dir = .*: job slurm:4711, which is "):
        submit([again])
    submit([mine], key="first")  # the same submit
    assert len(calls(home.parent, "sbatch")) == 1
    (directory,) = job_directories(home)
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    submit([again])
    assert len(calls(home.parent, "sbatch")) == 2
    with pytest.raises(BadRequest, match="writes there"):
        SlurmJobs(programs(tmp_path, squeue="exit 0"), home).resume(directory.path.name)


def test_a_job_is_resumed_on_other_numbers_of_nodes(home: Path, tmp_path: Path) -> None:
    directory, _ = submit_job(programs(home.parent, squeue="exit 0"), home, job({}))
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    jobs = SlurmJobs(programs(tmp_path, squeue="exit 0"), home)
    jobs.resume(directory.path.name, nodes=2, max_nodes=4)
    assert "--nodes=2-4\n" in (tmp_path / "bin" / "sbatch.script").read_text()


def test_a_rehearsal_refuses_a_slurm_that_is_too_old(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = programs(home.parent, sbatch='echo "$@" >> $0.old')
    sbatch = home.parent / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("22.05.8", "16.05.2"))
    monkeypatch.setattr(slurm_submission, "SlurmCommands", lambda: old)
    with pytest.raises(Unsupported, match=r"a.toml: Slurm 16.05 is too old"):
        submit([Submission("a.toml", job({}))], dry_run=True)
    sbatch.unlink()
    old.environment["PATH"] = str(home.parent / "bin")
    submit([Submission("a.toml", job({}))], dry_run=True)  # it cannot be asked here
