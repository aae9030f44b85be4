"""The check that a job continues from its state if its attempt is asked to save and end."""

from __future__ import annotations

from collections.abc import Sequence

from zerotoolsd.attempts import last_report
from zerotoolsd.queue.rows import AttemptRow, JobRow


def why_not_saved(job: JobRow, attempts: Sequence[AttemptRow]) -> str | None:
    """Return why it is uncertain that the job would save, in one sentence; None if it would.

    The built-in trainer always saves. A program of the user's saves if its checkpoints are known.
    """
    spec = job.reading.spec
    if spec is None:
        return "its job file cannot be read"
    if (process := spec.script.process) is not None:
        return f"it watches process {process.pid}, which it has not started and cannot start again"
    if spec.engine != "script" or spec.script.checkpoint_dir is not None:
        return None
    if last_report.latest_checkpoint(job, attempts) is not None:
        return None
    return (
        "its program has reported no checkpoint, and [script] names no checkpoint_dir, so it "
        "would begin anew"
    )
