"""Reads the last reports of an attempt: from its result, or from the end of its `progress.jsonl`.

Directories of users are never read, because their file system may hang.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts.backends.spawn_supervisor import SUPERVISOR_LOG
from zerotoolsd.queue import clocks
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.supervisor.attempt_plan import PROGRESS, RUN, SUMMARY
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, open_regular, read_json
from zerotoolsd.users.open_as_user import opened_run_directory

_TAIL_BYTES = 32 * 1024
_LONGEST_WHY = 1000
_LONGEST_LINE = 500
_STALL_NOTE = re.compile(r"^\[zerotools: .*; the stacks follow\]$", re.M)
"""The note of `heartbeats/handle_stall` in a log before the stacks of its processes."""
_MOST_REPORTED = 100
_PASSED_OVER = "skipped_checkpoint"
_WAYS = ("at_save", "digests", "unchanged", "structure")


@dataclass(frozen=True)
class Verified:
    """The verification of a checkpoint: the method `how`, and the time in seconds since the epoch.

    If the checkpoint was not verified, `how` is None, and `why` is the reason.
    """

    how: str | None
    time: float | None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class LastReport:
    """The newest reports of an attempt: the last step, the last evaluation, step and path of the
    newest checkpoint, and the largest memory use in bytes.

    Attributes:
        uploaded: `step`, `path` (a URL) and `time` of the newest checkpoint in a store. If a later
            upload failed, `why` is the reason.
        doing, doing_since: the activity before the first step, and the time at which it began, in
            seconds since the epoch.
        verified: path of each checkpoint that was verified or rejected -> the newest result.
    """

    step: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    doing: str | None = None
    doing_since: float | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    checkpoint_found: bool = False
    """True if the checkpoint finder found the checkpoint, and the program did not report it."""
    peak_host_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    uploaded: Mapping[str, Any] | None = None
    verified: Mapping[str, Verified] = field(default_factory=dict)


def last_report(attempt: AttemptRow) -> LastReport:
    """Return the newest reports of the attempt."""
    if attempt.state != ENDED:
        return report_so_far(Path(attempt.run_dir))
    result = attempt.result or {}
    step, checkpoint = result.get("progress"), result.get("checkpoint")
    return LastReport(
        step=step if isinstance(step, dict) else None,
        evaluation=_evaluation([{"event": SUMMARY, **result}]),
        checkpoint_step=_count(checkpoint, "step"),
        checkpoint_path=_path(checkpoint, "path"),
        checkpoint_found=isinstance(checkpoint, dict) and checkpoint.get("found") is True,
        peak_host_bytes=_count(result, "peak_host_bytes"),
        peak_gpu_bytes=_count(result, "peak_gpu_bytes"),
        uploaded=_uploaded([{"event": SUMMARY, **result}]),
        verified=_verified([checkpoint] if isinstance(checkpoint, dict) else []),
    )


def newest_verification(path: Path, attempts: Sequence[AttemptRow]) -> Verified | None:
    """Return the newest verification of the checkpoint `path` in any of `attempts`; None if it was
    never verified.
    """
    reports = (last_report(attempt).verified.get(str(path)) for attempt in reversed(attempts))
    return next((found for found in reports if found is not None), None)


def latest_checkpoint(job: JobRow, attempts: Sequence[AttemptRow]) -> tuple[int, Path] | None:
    """Return step and path of the newest checkpoint that the ranks of the job have reported; None
    if they have reported no checkpoint.
    """
    for report in map(last_report, reversed(attempts)):
        if report.checkpoint_step is not None:
            own = Path(job.output_dir) / find_job_checkpoints.directory_name(report.checkpoint_step)
            return report.checkpoint_step, Path(report.checkpoint_path or own)
    return None


def checkpoints_before(attempts: Sequence[AttemptRow]) -> list[str]:
    """Return the path of the newest checkpoint of each attempt, the newest attempt first."""
    paths = (last_report(attempt).checkpoint_path for attempt in reversed(attempts))
    return list(dict.fromkeys(path for path in paths if path is not None))


def reported_by_program(attempts: Sequence[AttemptRow]) -> list[str]:
    """Return the paths of the checkpoints that the program of the job has reported itself, the
    newest first.

    For each attempt, the newest checkpoint and the checkpoints in the last part of its
    `progress.jsonl` are included, at most _MOST_REPORTED in all.
    """
    paths: dict[str, None] = {}
    for attempt in reversed(attempts):
        newest = last_report(attempt)
        messages = _newest_first(Path(attempt.run_dir) / PROGRESS)
        known = [] if newest.checkpoint_found else [newest.checkpoint_path]
        known += [path for _, path, found in _checkpoints(list(messages)) if not found]
        paths.update(dict.fromkeys(path for path in known if path is not None))
    return list(paths)[:_MOST_REPORTED]


def last_sign_of_life(run_dir: Path) -> float | None:
    """Return the time at which a file of the attempt was last written, in seconds since the
    epoch; None if unknown.
    """
    dates = []
    with suppress(OSError), opened_run_directory(run_dir) as base:
        for name in (PROGRESS, RUN, "rank-0.log"):
            with suppress(OSError):
                dates.append((base / name).lstat().st_mtime)
    return max(dates, default=None)


def last_line(path: Path) -> str | None:
    """Return the last line of the log `path` that its program has written; None if there is none.

    A carriage return (of a progress bar) also ends a line. The notes of the supervisor, and the
    stacks that follow the note of a stall, are left out.
    """
    text = b"\n".join(_last_lines(path)).decode("utf-8", "replace")
    text = _STALL_NOTE.split(text.replace("\r", "\n"))[0]
    lines = [line.strip() for line in text.split("\n")]
    written = (line for line in reversed(lines) if line and not line.startswith("[zerotools: "))
    return next((one_line(line[:_LONGEST_LINE]) for line in written), None)


def report_so_far(run_dir: Path) -> LastReport:
    """Return the report of a running attempt: the reports of its ranks, and the measurements of its
    supervisor.
    """
    messages = list(_newest_first(run_dir / PROGRESS))
    step = next((m for m in messages if m.get("event") == "step"), None)
    newest = next(_checkpoints(messages), None)
    summary = next((m for m in messages if m.get("event") == SUMMARY), None)
    doing, since = _doing(messages)
    return LastReport(
        step=step,
        evaluation=_evaluation(messages),
        doing=doing,
        doing_since=since,
        checkpoint_step=newest[0] if newest else None,
        checkpoint_path=newest[1] if newest else None,
        checkpoint_found=newest is not None and newest[2],
        peak_host_bytes=_count(summary, "peak_host_bytes"),
        peak_gpu_bytes=_count(step, "gpu_peak_bytes"),
        uploaded=_uploaded(messages),
        verified=_verified(messages),
    )


def _evaluation(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the report of the newest evaluation in `messages`, which begin with the newest
    message; None if there is no evaluation.
    """
    for message in messages:
        if message.get("event") == "eval" and _count(message, "step") is not None:
            return message
        if message.get("event") == SUMMARY and isinstance(known := message.get("evaluation"), dict):
            return known
    return None


def _uploaded(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the newest upload to a store, and the reason if a later upload failed; None if
    there was no upload.

    The newest of `messages` comes first.
    """
    why: str | None = None
    for message in messages:
        event = message.get("event")
        said = message.get("uploaded") if event == SUMMARY else message
        if event not in ("uploaded", "upload_failed", SUMMARY) or not isinstance(said, Mapping):
            continue
        if why is None and isinstance(said.get("why"), str):
            why = one_line(said["why"])[:_LONGEST_WHY]
        if isinstance(path := said.get("path"), str):
            step, when = _count(said, "step"), _time(said.get("time"))
            return {"step": step, "path": path[:_LONGEST_WHY], "time": when, "why": why}
    return None if why is None else {"step": None, "path": None, "time": None, "why": why}


def first_step_time(run_dir: Path) -> float | None:
    """Return the time of the earliest step in the last part of `progress.jsonl`, in seconds since
    the epoch. Return None if this part has no step.
    """
    steps = [m for m in _newest_first(run_dir / PROGRESS) if m.get("event") == "step"]
    return _time(steps[-1].get("time")) if steps else None


def reports_as_record(attempt: AttemptRow) -> dict[str, Any]:
    """Return the reports of the ranks as keys of a record, for an attempt without a record from
    its supervisor.
    """
    known = report_so_far(Path(attempt.run_dir))
    step, path = known.checkpoint_step, known.checkpoint_path
    saved = {"step": step, "path": path, "found": known.checkpoint_found}
    return {
        "steps_done": (known.step or {}).get("step"),
        "progress": known.step,
        "evaluation": known.evaluation,
        "checkpoint": None if step is None else saved,
        "peak_gpu_bytes": known.peak_gpu_bytes,
        "peak_host_bytes": known.peak_host_bytes,
    }


def with_reports(attempt: AttemptRow, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `record`. If the keeper wrote it, the reports of the ranks are added.

    Ranks send their reports only to the supervisor, so a record of the keeper has no reports.
    """
    return {**reports_as_record(attempt), **record} if record.get("by_keeper") is True else record


def why_not_started(attempt: AttemptRow) -> str:
    """Return a sentence on a supervisor that ended before it started any process."""
    said = last_line(Path(attempt.run_dir) / SUPERVISOR_LOG)
    return "its supervisor ended before it started anything" + (f" ({said})" if said else "")


def last_seen(attempt: AttemptRow) -> dict[str, float]:
    """Return `ended` and `ran_seconds` for an attempt without a record of its end.

    `ended` is the time of the last sign of life of the attempt, and `ran_seconds` the time from its
    start until then. The result is empty if either value is unknown.
    """
    run_dir = Path(attempt.run_dir)
    sign, began = last_sign_of_life(run_dir), attempt.began
    if began is None:
        with suppress(OSError, ValueError), opened_run_directory(run_dir) as base:
            began = clocks.began_of(read_json(base / RUN, LARGEST_RECORD) or {})
    if sign is None or began is None:
        return {}
    # By the calendar, which may have been set; the time since the start is an upper bound.
    ran = min(max(0.0, sign - began.time), clocks.read_clocks().seconds_since(began))
    return {"ended": sign, "ran_seconds": ran}


def _verified(messages: Sequence[Mapping[str, Any]]) -> dict[str, Verified]:
    """Return the newest verification of each checkpoint: path -> verification.

    A checkpoint is verified when it is saved, found, used for a resume, or rejected.
    """
    found: dict[str, Verified] = {}
    for message in messages:
        event = message.get("event")
        prefix = "checkpoint_" if event == SUMMARY else ""
        path, how = _path(message, f"{prefix}path"), message.get(f"{prefix}verified")
        why = message.get("why" if event == _PASSED_OVER else f"{prefix}not_verified")
        if path is None or event not in ("checkpoint", "resumed", SUMMARY, _PASSED_OVER):
            continue
        if isinstance(how, str) and how in _WAYS:
            found.setdefault(path, Verified(how, _time(message.get(f"{prefix}time"))))
        elif isinstance(why, str):
            when = _time(message.get(f"{prefix}time"))
            found.setdefault(path, Verified(None, when, why[:_LONGEST_WHY]))
    return found


def _time(value: object) -> float | None:
    return value if isinstance(value, float) and 0 < value < 1e11 else None


def _doing(messages: Sequence[Mapping[str, Any]]) -> tuple[str | None, float | None]:
    newest = next((m for m in messages if m.get("event") in ("step", "phase")), {})
    doing, since = newest.get("doing"), newest.get("time")
    if not isinstance(doing, str):
        return None, None
    return doing, _time(since)


def _checkpoints(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str | None, bool]]:
    keys = {"checkpoint": "", SUMMARY: "checkpoint_"}
    for message in messages:
        event = message.get("event")
        if event not in ("checkpoint", SUMMARY):
            continue
        step = _count(message, f"{keys[event]}step")
        if step is not None:
            found = message.get(f"{keys[event]}found") is True
            yield step, _path(message, f"{keys[event]}path"), found


def _path(tree: object, key: str) -> str | None:
    value = tree.get(key) if isinstance(tree, Mapping) else None
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        return None
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # no file can have this name
        return None
    return value


def _count(tree: object, key: str) -> int | None:
    """Return the value of `key` in `tree` if it is an integer that the queue can store; None
    otherwise.

    Ranks can write `tree`, so it may contain anything.
    """
    value = tree.get(key) if isinstance(tree, Mapping) else None
    return value if type(value) is int and 0 <= value < 2**63 else None


def _newest_first(path: Path) -> Iterator[dict[str, Any]]:
    for line in reversed(_last_lines(path)):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict):
            yield message


def _last_lines(path: Path) -> list[bytes]:
    try:
        with (
            opened_run_directory(path.parent) as base,
            os.fdopen(open_regular(base / path.name), "rb") as file,
        ):
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return []
