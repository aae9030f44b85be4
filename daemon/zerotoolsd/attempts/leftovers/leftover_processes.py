"""Jobs that do not start because a program of an earlier attempt still runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotoolsd.attempts.end import end_event
from zerotoolsd.queue.rows import AttemptRow


class LeftoverProcesses:
    """The waiting jobs, by id. A restart of the daemon loses nothing: each job is checked when it
    starts."""

    def __init__(self) -> None:
        self._left: dict[int, Mapping[str, Any]] = {}

    def keeps(self, job_id: int, attempts: Sequence[AttemptRow]) -> bool:
        """Return whether the job, with these earlier attempts, must wait; if so, it is in
        `waits`."""
        result = (attempts[-1].result if attempts else None) or {}
        if not end_event.is_beside(result):
            return False
        self._left[job_id] = result
        return True

    def waits(self) -> dict[int, str]:
        """Return why each job must still wait."""
        self._left = {job: left for job, left in self._left.items() if end_event.is_beside(left)}
        return {
            job: f"waits for leftover processes of its last attempt: {end_event.held_by(left)}; "
            "zerotoolsd has no right to end them"
            for job, left in self._left.items()
        }
