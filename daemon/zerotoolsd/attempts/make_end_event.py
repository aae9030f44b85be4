"""Makes the event for the lifecycle of a job from the record of an attempt that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import ALWAYS
from zerotools.jobs.text.mask_secrets import mask_text
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts.cause_of_end import same_before, saved_step, why_not_again
from zerotoolsd.attempts.job_environment import unshown_values
from zerotoolsd.queue import lifecycle, retries_by_cause, time_limit
from zerotoolsd.queue.lifecycle import Ended
from zerotoolsd.queue.retries_by_cause import wait_factor
from zerotoolsd.queue.rows import AttemptRow, JobRow, UnreadableSpec
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.supervisor.attempt_plan import OUTSIDE
from zerotoolsd.supervisor.exit_record.decide_outcome import EXIT_STOPPED
from zerotoolsd.supervisor.procfs import Process, boot_id
from zerotoolsd.supervisor.stop.kill_descendants import in_words, is_still_alive
from zerotoolsd.supervisor.transient_os_errors import NOT_READY
from zerotoolsd.users.account import user_name

_MOST_LISTED, _LONGEST = 4, 500
_NOT_UPLOADED = "its newest checkpoint was not uploaded"
_UPLOAD_FAILED = "the upload failed"


def end_event(
    job: JobRow,
    record: Mapping[str, Any],
    *,
    asked: bool,
    before: Sequence[AttemptRow] = (),
    left: str | None = None,
    kind: str | None = None,
    attempt: AttemptRow | None = None,
) -> Ended:
    """Return the event for the end of an attempt, made from its `record`.

    Args:
        asked: whether this daemon asked the attempt to stop at its time limit.
        before: the earlier attempts.
        left: a sentence about surviving processes, from `survivors_sentence`; None if there are
            none.
        kind: the cause of the end.
        attempt: the attempt itself, if known.
    """
    outcome, spec, unreadable = outcome_of(job, record), job.reading.spec, None
    try:
        _ = job.spec
    except UnreadableSpec as error:
        unreadable = str(error)
    repeats = spec is None or spec.retry == ALWAYS
    known = unshown_values(spec)
    cause = one_line(str(record.get("cause") or "its record does not say how it ended"))
    if outcome == lifecycle.STOPPED and (why := _why_not(record, "uploading")) is not None:
        cause = f"{cause}; {_NOT_UPLOADED}: {why}"
    note = _what_failed_after(record) or _cut_short(record)
    if left is not None:
        cause, note = f"{cause}; {left}", left if note is None else f"{note}; {left}"
    hopeless = None if repeats else why_not_again(record, before[-1].result if before else None)
    return Ended(
        outcome=outcome if outcome in lifecycle.OUTCOMES else lifecycle.CRASHED,
        cause=mask_text(cause, known),
        saved_step=saved_step(record),
        max_restarts=spec.max_restarts if spec else 0,
        time_limit=time_limit.that_ended(spec, record, asked=asked),
        note=note,
        unreadable=unreadable,
        hopeless=hopeless and mask_text(one_line(hopeless), known),
        not_ready_before=_not_ready_at_the_end(before),
        rule=retries_by_cause.USUAL if repeats else retries_by_cause.rule_of(kind),
        same_before=same_before(kind, before),
        wait_factor=wait_factor(job.id, len(before) + 1),
        steps_lost=steps_lost(job, attempt, record),
    )


def _not_ready_at_the_end(attempts: Sequence[AttemptRow]) -> int:
    outcomes = ((attempt.result or {}).get("outcome") for attempt in reversed(attempts))
    return sum(1 for _ in takewhile(lambda outcome: outcome == NOT_READY, outcomes))


def forced_record(survivors: Iterable[Process], why: str) -> dict[str, Any]:
    """Return a record for a cancelled attempt that has no valid record of its own. `survivors` are
    the processes that got SIGKILL.
    """
    boot = boot_id()
    left = [{"pid": p.pid, "start_ticks": p.start_ticks, "boot_id": boot} for p in survivors]
    cause = (
        f"{len(left)} of its processes were killed, because the attempt could not be watched: {why}"
    )
    return {"outcome": lifecycle.KILLED, "cause": cause, "unkillable": left}


def survivors_text(record: Mapping[str, Any]) -> str | None:
    """Return text that names the processes that survived the attempt and may still use its GPUs;
    None if there are no such processes.
    """
    return _listed(gpu_survivors(record)) or None


def gpu_survivors(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records of the processes that survived the attempt and may still use its GPUs."""
    return [line for line in record.get("unkillable", ()) if line.get("helper") is not True]


def survivors_sentence(
    record: Mapping[str, Any], gpu_uuids: Sequence[str], gpu_name: Callable[[str], str]
) -> str | None:
    """Return a sentence on the processes that survived the attempt, and the consequence for its
    GPUs.

    Return None if no process survived. `gpu_name` maps a UUID to the name that users see.
    """
    lines = [line for line in record.get("unkillable", ()) if is_still_alive(line)]
    if not lines:
        return None
    gpus = [gpu_name(uuid) for uuid in gpu_uuids] if survivors_text({"unkillable": lines}) else []
    one = len(lines) == 1
    words, then = f"{_listed(lines)} {'does' if one else 'do'} not end", "ends" if one else "end"
    process = "this process" if one else "these processes"
    if gpus:
        words += f": {_joined(gpus)} {'stays' if len(gpus) == 1 else 'stay'} reserved until "
        words += f"{process} {then}"
    if may_still_run(record):
        words += f"; the job is not started again before {process} {then}"
    return words


def may_still_run(record: Mapping[str, Any]) -> bool:
    """Return whether a program of the attempt may still be running when the job is restarted.

    Only a program of another user can still run, because this daemon may not kill it. A program
    that was killed executes nothing more, even if its process still exists.
    """
    lines = record.get("unkillable", ())
    return any(line.get("refused") is True and is_still_alive(line) for line in lines)


def _listed(lines: Sequence[Mapping[str, Any]]) -> str:
    more = f" and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
    return "; ".join(in_words(line, user_name) for line in lines[:_MOST_LISTED]) + more


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _what_failed_after(record: Mapping[str, Any]) -> str | None:
    said = []
    for name, what in (("closing", "the export failed"), ("uploading", _UPLOAD_FAILED)):
        if (why := _why_not(record, name)) is not None:
            said.append(f"{what}: {why}")
    return f"all its steps are done and saved; {'; '.join(said)}" if said else None


def _cut_short(record: Mapping[str, Any]) -> str | None:
    said = record.get("cut_short")
    return one_line(said[:_LONGEST]) if isinstance(said, str) else None


def with_upload(reason: str, record: Mapping[str, Any]) -> str:
    """Return the job's `reason` with the failure of the upload in `record` replaced, because a
    later upload succeeded.
    """
    why = _why_not(record, "uploading")
    for failure in (_NOT_UPLOADED, _UPLOAD_FAILED):
        reason = reason.replace(f"{failure}: {why}", "its newest checkpoint was uploaded later")
    return reason


def _why_not(record: Mapping[str, Any], name: str) -> str | None:
    done = record.get(name)
    why = done.get("why") if isinstance(done, Mapping) else None
    return None if why is None else one_line(str(why))


def outcome_of(job: JobRow, record: Mapping[str, Any]) -> object:
    """Return the outcome of the attempt with this `record`, for the lifecycle of `job`.

    If the job was asked to save and end, a SIGTERM is assumed to come from the daemon, even if the
    supervisor could not read the request.
    """
    outcome = record.get("outcome")
    heard = job.state in states.GIVING_WAY and record.get("stop_reason") == OUTSIDE
    saved = record.get("rank") is None and record.get("exit_code") in (0, EXIT_STOPPED)
    return lifecycle.STOPPED if heard and saved and outcome == lifecycle.CRASHED else outcome


def steps_lost(job: JobRow, attempt: AttemptRow | None, record: Mapping[str, Any]) -> int | None:
    """Return the number of steps that the attempt has done but not saved; None if unknown."""
    done = record.get("steps_done")
    if type(done) is not int or not 0 <= done < 2**63:
        return None
    if done == 0:
        spec = job.reading.spec
        return None if spec is None or spec.engine == "script" else 0
    saved = max(saved_step(record), job.standing.best_step)
    begun = None if attempt is None else attempt.resumed_from
    if begun is not None:
        named = find_job_checkpoints.step_of(PurePath(begun).name)
        if named is None and not saved:
            return None  # the step at which it began is unknown
        saved = max(saved, named or 0)
    return max(0, done - saved)
