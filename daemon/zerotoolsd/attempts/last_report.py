"""What is known of an attempt: by its result, or by the end of its `progress.jsonl`.

The directories of users are never looked at: theirs may be on a file system that hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.runs import checkpoint_dirs
from zerotoolsd.accounts.rights import opened
from zerotoolsd.attempts.spawning.child import SUPERVISOR_LOG
from zerotoolsd.queue import clocks
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.values import one_line
from zerotoolsd.supervisor.durable import LARGEST_RECORD, open_regular, read_json
from zerotoolsd.supervisor.plan import PROGRESS, RUN, SUMMARY

_TAIL_BYTES = 32 * 1024
_LONGEST_WHY = 1000
_LONGEST_LINE = 500
_MOST_REPORTED = 100
_PASSED_OVER = "skipped_checkpoint"
_WAYS = ("at_save", "digests", "unchanged", "structure")


@dataclass(frozen=True)
class Verified:
    """`how` a checkpoint was verified, and when, in seconds since the epoch; `how` is None where it
    was not, as `why` says."""

    how: str | None
    time: float | None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class LastReport:
    """The messages of the newest step and of the newest evaluation, step and path of the newest
    checkpoint, and the peaks in bytes.

    `uploaded` has `step`, `path` (a URL) and `time` of the newest copy in a store, and `why` the
    next one failed. `doing` is what is done before the first step, until that is over, and
    `doing_since` when that began, in seconds since the epoch. `verified` are the newest words on
    each checkpoint that was verified or not, by its path.
    """

    step: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    doing: str | None = None
    doing_since: float | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    checkpoint_found: bool = False
    """True where the finder found it and the program did not report it."""
    peak_host_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    uploaded: Mapping[str, Any] | None = None
    verified: Mapping[str, Verified] = field(default_factory=dict)


def last_report(attempt: AttemptRow) -> LastReport:
    """What is known of the attempt now."""
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


def verified(path: Path, attempts: Sequence[AttemptRow]) -> Verified | None:
    """The newest that any attempt said of the checkpoint at `path`; None: nothing was said."""
    reports = (last_report(attempt).verified.get(str(path)) for attempt in reversed(attempts))
    return next((found for found in reports if found is not None), None)


def latest_checkpoint(job: JobRow, attempts: Sequence[AttemptRow]) -> tuple[int, Path] | None:
    """Step and path of the newest checkpoint that the job's ranks reported."""
    for report in map(last_report, reversed(attempts)):
        if report.checkpoint_step is not None:
            own = Path(job.output_dir) / checkpoint_dirs.directory_name(report.checkpoint_step)
            return report.checkpoint_step, Path(report.checkpoint_path or own)
    return None


def checkpoints_before(attempts: Sequence[AttemptRow]) -> list[str]:
    """The newest checkpoint of each attempt, the newest first."""
    paths = (last_report(attempt).checkpoint_path for attempt in reversed(attempts))
    return list(dict.fromkeys(path for path in paths if path is not None))


def reported_by_program(attempts: Sequence[AttemptRow]) -> list[str]:
    """The checkpoints that the job's program reported itself, the newest first.

    Of each attempt these are the newest, and those in the last part of its `progress.jsonl`.
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
    """When anything of the attempt was last written, in seconds since the epoch."""
    dates = []
    with suppress(OSError), opened(run_dir) as base:
        for name in (PROGRESS, RUN, "rank-0.log"):
            with suppress(OSError):
                dates.append((base / name).lstat().st_mtime)
    return max(dates, default=None)


def last_line(path: Path) -> str | None:
    """The end of a log. A bar that redraws its line ends it with a carriage return."""
    text = b"\n".join(_last_lines(path)).decode("utf-8", "replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    return next((one_line(line[:_LONGEST_LINE]) for line in reversed(lines) if line), None)


def report_so_far(run_dir: Path) -> LastReport:
    """What the ranks of an attempt reported to its supervisor, and what that measured."""
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
    """Return the newest evaluation, from messages with the newest first."""
    for message in messages:
        if message.get("event") == "eval" and _count(message, "step") is not None:
            return message
        if message.get("event") == SUMMARY and isinstance(known := message.get("evaluation"), dict):
            return known
    return None


def _uploaded(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest copy in a store, and why the one after it failed. Newest message first."""
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
    """When the first step was done of those that are in reach, in seconds since the epoch; None:
    none is."""
    steps = [m for m in _newest_first(run_dir / PROGRESS) if m.get("event") == "step"]
    return _time(steps[-1].get("time")) if steps else None


def told(attempt: AttemptRow) -> dict[str, Any]:
    """What the supervisor kept of what the ranks told, for a record that it did not write."""
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


def with_what_was_told(attempt: AttemptRow, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The supervisor's keeper does not hear the ranks."""
    return {**told(attempt), **record} if record.get("by_keeper") is True else record


def why_not_started(attempt: AttemptRow) -> str:
    """What its supervisor said, which ended before it started anything."""
    said = last_line(Path(attempt.run_dir) / SUPERVISOR_LOG)
    return "its supervisor ended before it started anything" + (f" ({said})" if said else "")


def last_seen(attempt: AttemptRow) -> dict[str, float]:
    """How long an attempt ran at least whose supervisor cannot say it any more."""
    run_dir = Path(attempt.run_dir)
    sign, began = last_sign_of_life(run_dir), attempt.began
    if began is None:
        with suppress(OSError, ValueError), opened(run_dir) as base:
            began = clocks.began_of(read_json(base / RUN, LARGEST_RECORD) or {})
    if sign is None or began is None:
        return {}
    # By the calendar, which may have been set meanwhile; the clock since its start bounds it.
    ran = min(max(0.0, sign - began.time), clocks.now().seconds_since(began))
    return {"ended": sign, "ran_seconds": ran}


def _verified(messages: Sequence[Mapping[str, Any]]) -> dict[str, Verified]:
    """What was said of each checkpoint, the newest first: when it was saved, found, resumed from or
    passed over."""
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
    """Ranks can write into the run directory too: only what the queue can store is believed."""
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
        with opened(path.parent) as base, os.fdopen(open_regular(base / path.name), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return []
