"""A job whose record cannot be read is shown among the others."""

from __future__ import annotations

from pathlib import Path

from tests.jobs.slurm.fake_programs import programs
from tests.jobs.tables.test_slurm import job
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submitting import submit_job


def test_one_damaged_record_hides_no_other_job(tmp_path: Path) -> None:
    home = tmp_path / "home"
    commands = programs(tmp_path, squeue="exit 0")
    damaged, _ = submit_job(commands, home, job({}, name="damaged"))
    submit_job(commands, home, job({}, name="whole"))
    (damaged.path / "job.json").write_text('{"spec')
    (damaged.path / "view.json").write_text('{"a": 1}')
    views = {view["name"]: view for view in SlurmJobs(commands, home).jobs()}
    assert views["whole"]["reason"] == "Slurm does not list it yet"
    assert "job.json" in views[damaged.path.name]["reason"]
