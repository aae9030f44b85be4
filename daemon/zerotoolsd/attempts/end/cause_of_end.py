"""The cause of an attempt's end, by the record that its supervisor left. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.sensors.xids import GpuXid, is_fault
from zerotoolsd.attempts.end import permanent_failures
from zerotoolsd.queue import lifecycle, retry_causes
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.transient_errors import NOT_READY

_GPU_MEMORY = re.compile(r"CUDA(?: error:)? out of memory|OutOfMemoryError|out of GPU memory")
_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_OF_OUTCOME: Mapping[str, str | None] = {
    lifecycle.FINISHED: None,
    lifecycle.STOPPED: None,
    lifecycle.KILLED: retry_causes.KILLED,
    lifecycle.BAD_JOB: retry_causes.USER_ERROR,
    lifecycle.NOT_STARTED: retry_causes.USER_ERROR,
    lifecycle.BAD_CHECKPOINT: retry_causes.BAD_CHECKPOINT,
    NOT_READY: retry_causes.MACHINE,
}


def cause_of(
    record: Mapping[str, Any], xids: Sequence[GpuXid] = (), *, on_gpus: bool = True
) -> str | None:
    """Return one of `causes`; None if the attempt ended as requested.

    `xids` are those that the driver reported for its GPUs while it ran; `on_gpus`: it had GPUs.
    """
    outcome = record.get("outcome")
    if outcome not in lifecycle.OUTCOMES:
        outcome = lifecycle.CRASHED
    if outcome in _OF_OUTCOME:
        return _OF_OUTCOME[outcome]
    if any(is_fault(xid.code) for xid in xids):
        return retry_causes.GPU_FAULT
    if outcome == lifecycle.LOST:
        return retry_causes.REBOOT if record.get("rebooted") is True else retry_causes.LOST
    if permanent_failures.mistake_of(record) is not None:
        return retry_causes.USER_ERROR
    if record.get("out_of_host_memory") is True:
        return retry_causes.HOST_MEMORY
    said = "\n".join(str(record.get(name)) for name in ("cause", "last_error", "last_lines"))
    if on_gpus and _GPU_MEMORY.search(said):  # Java has an OutOfMemoryError, too
        return retry_causes.GPU_MEMORY
    if xids:
        return retry_causes.GPU_PROGRAM
    if record.get("stalled") is True:
        return retry_causes.HANG
    number = record.get("signal")
    is_outside = type(number) is int and number in _OUTSIDE
    return retry_causes.KILLED if is_outside else retry_causes.RANK_DIED


def same_before(cause: str | None, before: Sequence[AttemptRow]) -> int:
    """Count the attempts of `before`, newest first, ended by `cause` since the last progress.

    Progress is a saved step that is newer than all earlier ones.
    """
    steps = [saved_step(attempt.result or {}) for attempt in before]
    count = 0
    for place in range(len(before) - 1, -1, -1):
        if before[place].cause == cause:
            count += 1
        if steps[place] > max(steps[:place], default=0):
            break  # with this end the count began anew
    return count


def saved_step(record: Mapping[str, Any]) -> int:
    """Return the newest step that the attempt saved; 0 if none."""
    checkpoint = record.get("checkpoint")
    return int(checkpoint["step"]) if isinstance(checkpoint, Mapping) else 0
