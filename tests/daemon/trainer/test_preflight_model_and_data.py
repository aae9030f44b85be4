"""A job that is tried without its ranks: what it would hold, on a GPU and on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launching import job
from zerotools.jobs.jobfile.parse import job_from_dict

pytestmark = pytest.mark.torch


def test_what_a_gpu_holds_is_told_as_memory_of_the_gpu(text: Path) -> None:
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    told = {}
    for device in ("cuda", "cpu"):
        tree = {**job(text), "device": device}
        if device == "cuda":
            del tree["ranks"]
            tree["gpus"] = 1
        found = check_job(job_from_dict(tree, source="job"), 1)
        assert found.view is not None
        told[device] = found.view["memory"]
    assert "GPU" in told["cuda"]
    assert "GPU" not in told["cpu"]
