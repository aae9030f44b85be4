"""Explains why a user's program failed, with its error and one piece of advice. Pure.

The supervisor only knows how a program ended: "rank 0 exited with 1". This adds the error line of
its output, masked and bounded, and advice if there is some:

    rank 0 exited with 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB;
    try a smaller batch per GPU with more accumulation steps
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.jobs.text.secrets import mask_text
from zerotoolsd.queue import lifecycle, retry_causes
from zerotoolsd.queue.values import one_line
from zerotoolsd.supervisor.exit_record.last_error import LONGEST, error_line

LONGEST_SHOWN = 300
_BARE = re.compile(r"rank [0-9]+ (?:exited with [0-9]+|was ended by signal [0-9]+ \([A-Z0-9]+\))$")
"""A cause without any message of the program."""
_OUTSIDE = re.compile(r"\((?:SIGKILL|SIGTERM|SIGINT|SIGHUP)\)$")
_OUTCOMES = (lifecycle.CRASHED, lifecycle.BAD_JOB, lifecycle.BAD_CHECKPOINT)
_ADVICE_OF_CAUSE: Mapping[str, str] = {
    retry_causes.GPU_MEMORY: "try a smaller batch per GPU with more accumulation steps, or shorter "
    "sequences",
    retry_causes.HOST_MEMORY: "try fewer data loader workers, or give the job more memory",
}
_ADVICE: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (
            r"ModuleNotFoundError|No module named",
            "try to install it for the job's python, or name another one with python = ...",
        ),
        (r"no space left|quota exceeded", "try to free space: zerotools clean, df -h"),
        (r"too many open files", "try a higher limit: ulimit -n"),
        (
            r"invalid device ordinal|no CUDA GPUs are available",
            "try device numbers from 0 on: the daemon sets CUDA_VISIBLE_DEVICES",
        ),
        (
            r"bus error|shared memory",
            "try fewer data loader workers: /dev/shm may be full (df -h /dev/shm)",
        ),
        (
            r"watchdog caught collective operation timeout|ncclSystemError|ncclInternalError",
            'try NCCL_P2P_DISABLE = "1" in [env], and NCCL_DEBUG = "INFO" to see what NCCL uses',
        ),
        (
            r"device-side assert|illegal memory access",
            "try CUDA_LAUNCH_BLOCKING=1 in [env] to see which operation fails",
        ),
        (
            r"command not found|no such file or directory",
            "try absolute paths: relative ones start in the job's directory",
        ),
    )
)


def explained(
    record: Mapping[str, Any], kind: str | None, secrets: Sequence[str]
) -> dict[str, Any]:
    """Return the record with the program's error in its cause.

    `kind` is one of `causes`, and `secrets` are those of the job.
    """
    cause = record.get("cause")
    if record.get("outcome") not in _OUTCOMES or not isinstance(cause, str):
        return dict(record)
    if not _BARE.fullmatch(cause) or _OUTSIDE.search(cause):
        return dict(record)
    error = _error_of(record)
    advice = _advice(error or "", kind)
    # A secret that is cut in two is not known any more.
    said = None if error is None else _clipped(mask_text(one_line(error), secrets))
    words = cause if said is None else f"{cause}: {said}"
    return {**record, "cause": words if advice is None else f"{words}; {advice}"}


def _error_of(record: Mapping[str, Any]) -> str | None:
    said = record.get("last_error")
    if isinstance(said, str):
        return said[:LONGEST]
    lines = record.get("last_lines")  # of a supervisor of an older version
    return error_line(lines) if isinstance(lines, str) else None


def _advice(error: str, kind: str | None) -> str | None:
    found = next((advice for pattern, advice in _ADVICE if pattern.search(error)), None)
    return _ADVICE_OF_CAUSE.get(kind or "", found)


def _clipped(text: str) -> str:
    plain = text.rstrip(". ;")
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[:LONGEST_SHOWN]}..."
