"""Makes a job that does not exist, for the examples that `zerotools notify test` sends."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from zerotools.jobs import states
from zerotoolsd.config.notify_config import DISK_SHORT, MEMORY_SHORT
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "failed": "rank 0 exited with 1: torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB; try a smaller batch per GPU with more accumulation steps, or shorter "
        "sequences; max_restarts = 3 allows no more restarts",
        "retried": "rank 1 was ended by signal 9 (SIGKILL); restart 1 of 3 in 10 s",
        "stopped": "its time limit of 2 h is over; saved at step 400 and stopped",
        "stalled": "the others wait for rank 1",
        "preempted": "stops for job 9 of priority 5; saved at step 400 and stopped, 0 steps lost",
        "held": "its output directory cannot be written: No space left on device",
        "paused": "held by anna",
        "cancelled": "cancelled by anna",
        MEMORY_SHORT: "no job starts while the memory of the host runs out: 2.1 of 251.0 GiB free",
        DISK_SHORT: "/var/lib/zerotools has 3.2 GiB free, less than 10 GiB (notify.disk_free); "
        "zerotools clean frees space",
    }
)
"""The reason in the example of each kind of notice; kinds without a reason are left out."""
_ID, _STEPS = 0, 1000
_SECONDS = 7500.0
"""Its duration."""


def example_job(notice: str, state: str, now: float) -> tuple[JobRow, AttemptRow]:
    """Return the job of the example of a notice, and its newest attempt. The job began
    `_SECONDS` seconds before `now`, which is in seconds since the epoch.
    """
    begin, directory = now - _SECONDS, "/runs/example"
    step = {"first_step": 1, "succeeded": _STEPS}.get(notice, 400)
    progress = {"step": step, "steps": _STEPS, "loss": 10.42 if step == 1 else 2.314}
    job = JobRow(
        id=_ID,
        uid=0,
        name="example",
        spec_text="{}",
        given_text=None,
        spec_version="",
        output_dir=directory,
        standing=JobStatus(state=state),
        created=begin,
        started=None if state == states.QUEUED else begin,
        ended=None,
    )
    attempt = AttemptRow(
        job_id=_ID,
        number=1,
        token="",
        state=ENDED,
        run_dir="",
        gpu_uuids=("GPU-0", "GPU-1"),
        resumed_from=f"{directory}/step-200",
        started=begin,
        ended=now,
        result={
            "progress": progress,
            "checkpoint": {"step": step, "path": f"{directory}/step-{step}"},
        },
    )
    return job, attempt
