"""Jobs of which a program of an earlier attempt still runs, and that do not start beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotoolsd.attempts import ending
from zerotoolsd.queue.rows import AttemptRow


class BesideJobs:
    """By job id. Nothing is lost by a restart of the daemon: each job is looked at as it starts."""

    def __init__(self) -> None:
        self._left: dict[int, Mapping[str, Any]] = {}

    def keeps(self, job_id: int, attempts: Sequence[AttemptRow]) -> bool:
        """Whether the job, which had these attempts, must wait; then it is in `waits`."""
        result = (attempts[-1].result if attempts else None) or {}
        if not ending.is_beside(result):
            return False
        self._left[job_id] = result
        return True

    def waits(self) -> dict[int, str]:
        """Why each job must wait still."""
        self._left = {job: left for job, left in self._left.items() if ending.is_beside(left)}
        return {
            job: f"waits for what is left of its last attempt: {ending.held_by(left)}; zerotoolsd "
            "has no right to end it"
            for job, left in self._left.items()
        }
