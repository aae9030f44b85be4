"""The end of an attempt after a request to save, and the number of steps that it lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from zerotools.jobs import states
from zerotools.runs import checkpoint_dirs
from zerotoolsd.attempts.end.cause_of_end import saved_step
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.exit_record.outcome import EXIT_STOPPED
from zerotoolsd.supervisor.plan import OUTSIDE


def outcome_of(job: JobRow, record: Mapping[str, Any]) -> object:
    """Return the outcome of the attempt with this `record`.

    A yielding attempt has got the daemon's SIGTERM even if it could not read the reason: that is
    not a signal from outside.
    """
    outcome = record.get("outcome")
    heard = job.state in states.GIVING_WAY and record.get("stop_reason") == OUTSIDE
    saved = record.get("rank") is None and record.get("exit_code") in (0, EXIT_STOPPED)
    return lifecycle.STOPPED if heard and saved and outcome == lifecycle.CRASHED else outcome


def steps_lost(job: JobRow, attempt: AttemptRow | None, record: Mapping[str, Any]) -> int | None:
    """Return how many steps of the attempt are in no checkpoint; None if unknown."""
    done = record.get("steps_done")
    if type(done) is not int or not 0 <= done < 2**63:
        return None
    if done == 0:
        spec = job.reading.spec
        return None if spec is None or spec.engine == "script" else 0
    saved = max(saved_step(record), job.standing.best_step)
    begun = None if attempt is None else attempt.resumed_from
    if begun is not None:
        named = checkpoint_dirs.step_of(PurePath(begun).name)
        if named is None and not saved:
            return None  # it began at a step that is not known
        saved = max(saved, named or 0)
    return max(0, done - saved)
