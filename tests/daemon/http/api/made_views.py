"""Jobs and attempts as clients see them, and what ranks report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import AttemptView, JobView

JOB: dict[str, Any] = {
    "name": "tiny",
    "device": "cpu",
    "ranks": 2,
    "env": {"TOKEN": "hunter2"},
    "model": {"config": {"model_type": "llama"}},
    "data": {"text": ["/data/*.txt"]},
    "train": {"steps": 40, "batch_size": 12},
}
SHARE: dict[str, Any] = {
    "uid": 8,
    "name": "uid 8",
    "weight": 1.0,
    "share": 0.5,
    "used": 0.0,
    "gpu_hours": 12.25,
    "gpu_hours_in_all": 480.0,
    "factor": 1.0,
    "gpus": 2,
    "waiting": 3,
}
STEP: dict[str, Any] = {
    "event": "step",
    "rank": 0,
    "phase": "train",
    "step": 12,
    "steps": 40,
    "loss": 2.5,
    "lr": 3e-4,
    "grad_norm": 1.25,
    "tokens_per_second": 15300.0,
    "step_seconds": 0.5,
    "rss_bytes": 3 << 30,
    "gpu_peak_bytes": None,
}


def a_job(**changes: Any) -> JobSpec:
    """A valid job, with `changes` at its top level."""
    return job_from_dict(JOB | changes, source="test")


def an_attempt(number: int = 1, **changes: Any) -> AttemptView:
    """A running attempt."""
    usual = AttemptView(
        number=number,
        state="running",
        gpu_uuids=(),
        started=1_700_000_060.0,
        ended=None,
        exit_code=None,
        signal=None,
        cause=None,
        resumed_from=None,
        peak_gpu_bytes=None,
        peak_host_bytes=6 << 30,
        steps_done=12,
        run_dir=f"/state/jobs/1/attempt-{number}",
    )
    return replace(usual, **changes)


def a_view(job_id: int, spec: JobSpec, *, uid: int = 0, **changes: Any) -> JobView:
    """A queued job. Its environment is deliberately not blanked: the API must not rely on that."""
    usual = JobView(
        id=job_id,
        name=spec.name or "",
        state="queued",
        reason="needs 1 GPU, and GPU 0 is leased to job 1",
        uid=uid,
        created=1_700_000_000.0,
        started=None,
        ended=None,
        attempts=(),
        world_size=spec.world_size,
        device=spec.device,
        stage=spec.zero.stage,
        output_dir=f"/state/jobs/{job_id}/output",
        latest_checkpoint=None,
        progress=None,
        spec=job_to_dict(spec),
    )
    return replace(usual, **changes)
