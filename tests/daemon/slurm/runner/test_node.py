from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from zerotools.core.errors import BadRequest
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotoolsd.slurm.runner import node


def test_the_gpus_are_those_that_slurm_gave() -> None:
    spec = job({}, device="cuda", ranks=None, gpus=2)
    assert node.gpus_of(spec, {"CUDA_VISIBLE_DEVICES": "4,5"}) == ("4", "5")
    assert node.gpus_of(job({}), {"CUDA_VISIBLE_DEVICES": "4,5"}) == ()
    with pytest.raises(
        BadRequest, match="has 1 GPU from Slurm, but the job needs 2 GPUs on each node"
    ):
        node.gpus_of(spec, {"CUDA_VISIBLE_DEVICES": "4"})
    with pytest.raises(BadRequest, match="has 0 GPUs from Slurm"):
        node.gpus_of(spec, {})


def test_a_directory_that_is_not_shared_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "SETTINGS_SECONDS", 0.0)
    monkeypatch.setenv("SLURM_NODEID", "1")
    directory = JobDirectory(tmp_path)
    directory.attempt_path(1).mkdir(parents=True)
    assert node.main([str(tmp_path), "1"]) == 0
    said = (directory.run_dir(1, 1) / "exit.json").read_text()
    assert "the job's directory is not the same on all nodes" in said
    assert '"outcome": "bad_job"' in said
