"""What is known of an attempt: by its result, or by the end of its `progress.jsonl`.

The directories of users are never looked at: theirs may be on a file system that hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.formats.dcp import jobcheckpoint as layout
from zerotoolsd.store.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.plan import PROGRESS, SUMMARY

_TAIL_BYTES = 32 * 1024


@dataclass(frozen=True, kw_only=True)
class Told:
    """The newest step's message, the step of the newest checkpoint, and the peaks in bytes."""

    step: Mapping[str, Any] | None = None
    checkpoint_step: int | None = None
    peak_host_bytes: int | None = None
    peak_gpu_bytes: int | None = None


def of(attempt: AttemptRow) -> Told:
    """What is known of the attempt now."""
    if attempt.state != ENDED:
        return so_far(Path(attempt.run_dir))
    result = attempt.result or {}
    step, checkpoint = result.get("progress"), result.get("checkpoint")
    return Told(
        step=step if isinstance(step, dict) else None,
        checkpoint_step=_count(checkpoint, "step"),
        peak_host_bytes=_count(result, "peak_host_bytes"),
        peak_gpu_bytes=_count(result, "peak_gpu_bytes"),
    )


def latest_checkpoint(job: JobRow, attempts: Sequence[AttemptRow]) -> tuple[int, Path] | None:
    """Step and path of the newest checkpoint that the job's ranks told of."""
    steps = (of(attempt).checkpoint_step for attempt in reversed(attempts))
    step = next((step for step in steps if step is not None), None)
    return None if step is None else (step, Path(job.output_dir) / layout.directory_name(step))


def so_far(run_dir: Path) -> Told:
    """What the ranks of an attempt told its supervisor, and what that measured."""
    messages = list(_newest_first(run_dir / PROGRESS))
    step = next((m for m in messages if m.get("event") == "step"), None)
    summary = next((m for m in messages if m.get("event") == SUMMARY), None)
    return Told(
        step=step,
        checkpoint_step=next(_checkpoint_steps(messages), None),
        peak_host_bytes=_count(summary, "peak_host_bytes"),
        peak_gpu_bytes=_count(step, "gpu_peak_bytes"),
    )


def _checkpoint_steps(messages: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    keys = {"checkpoint": "step", SUMMARY: "checkpoint_step"}
    for message in messages:
        event = message.get("event")
        step = _count(message, keys[event]) if event in ("checkpoint", SUMMARY) else None
        if step is not None:
            yield step


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
        with os.fdopen(open_regular(path), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return []
