"""What an attempt's record says of its end, for the lifecycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from zerotools.jobs.tables.spec import ALWAYS
from zerotools.jobs.text.secrets import mask_text
from zerotoolsd.attempts.environment import secrets_of
from zerotoolsd.attempts.repeating import why_not_again
from zerotoolsd.queue import lifecycle, time_limit
from zerotoolsd.queue.lifecycle import Ended
from zerotoolsd.queue.rows import AttemptRow, JobRow, UnreadableSpec
from zerotoolsd.supervisor.procfs import Process, boot_id, read_process
from zerotoolsd.supervisor.trouble import NOT_READY


def end_event(
    job: JobRow, record: Mapping[str, Any], *, asked: bool, before: Sequence[AttemptRow] = ()
) -> Ended:
    """The event; `asked`: this daemon has asked the attempt to stop at its time limit. `before`:
    the attempts before it."""
    outcome, spec, unreadable = record.get("outcome"), job.reading.spec, None
    try:
        _ = job.spec
    except UnreadableSpec as error:
        unreadable = str(error)
    repeats = spec is None or spec.retry == ALWAYS
    known = secrets_of(spec)
    cause = str(record.get("cause") or "its record does not say how it ended")
    hopeless = None if repeats else why_not_again(record, before[-1].result if before else None)
    return Ended(
        outcome=outcome if outcome in lifecycle.OUTCOMES else lifecycle.CRASHED,
        cause=mask_text(cause, known),
        saved_step=_saved_step(record),
        max_restarts=spec.max_restarts if spec else 0,
        time_limit=time_limit.that_ended(spec, record, asked=asked),
        note=_what_failed_after(record),
        unreadable=unreadable,
        hopeless=hopeless and mask_text(hopeless, known),
        not_ready_before=_not_ready_at_the_end(before),
    )


def _not_ready_at_the_end(attempts: Sequence[AttemptRow]) -> int:
    outcomes = ((attempt.result or {}).get("outcome") for attempt in reversed(attempts))
    return sum(1 for _ in takewhile(lambda outcome: outcome == NOT_READY, outcomes))


def forced_record(strays: Iterable[Process], why: str) -> dict[str, Any]:
    """The record of an attempt that was cancelled and whose own record cannot be used."""
    boot = boot_id()
    left = [{"pid": p.pid, "start_ticks": p.start_ticks, "boot_id": boot} for p in strays]
    cause = f"{len(left)} of its processes were killed, since it could not be followed: {why}"
    return {"outcome": lifecycle.KILLED, "cause": cause, "unkillable": left}


def held_by(record: Mapping[str, Any]) -> str | None:
    """Who may still hold on to the attempt's GPUs."""
    return ", ".join(f"pid {process['pid']}" for process in record.get("unkillable", ())) or None


def is_still_alive(process: Mapping[str, Any]) -> bool:
    """Whether a process that outlived its attempt lives."""
    if process.get("boot_id", boot_id()) != boot_id():
        return False
    now = read_process(int(process["pid"]))
    return now is not None and now.start_ticks == process["start_ticks"]


def _what_failed_after(record: Mapping[str, Any]) -> str | None:
    closing = record.get("closing")
    why = closing.get("why") if isinstance(closing, Mapping) else None
    return None if why is None else f"all its steps are done and saved; the export failed: {why}"


def _saved_step(record: Mapping[str, Any]) -> int:
    checkpoint = record.get("checkpoint")
    return int(checkpoint["step"]) if isinstance(checkpoint, Mapping) else 0
