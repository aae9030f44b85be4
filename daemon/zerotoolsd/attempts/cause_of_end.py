"""Finds why an attempt ended: the cause, one piece of advice, and whether a restart would help. The
functions do no I/O.

`cause_of` returns the cause. `why_not_again` decides whether a restart would end in the same way,
and `mistake_of` finds a mistake of the user. `with_shutdown` recognises a restart of the machine,
`with_xids` adds GPU errors to the record of the attempt, and `with_explained_cause` adds the
program's error with advice.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerotools.jobs.text.mask_secrets import mask_text
from zerotools.sensors.xids import GpuXid, is_fault
from zerotoolsd.queue import lifecycle, retries_by_cause
from zerotoolsd.queue.gpu_fault_fences import XidsByGpu, codes_text
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.supervisor import procfs
from zerotoolsd.supervisor.attempt_plan import OUTSIDE
from zerotoolsd.supervisor.exit_record.first_failure import LONGEST, error_line, last_error
from zerotoolsd.supervisor.transient_os_errors import NOT_READY

_GPU_MEMORY = re.compile(r"CUDA(?: error:)? out of memory|OutOfMemoryError|out of GPU memory")
_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_OF_OUTCOME: Mapping[str, str | None] = {
    lifecycle.FINISHED: None,
    lifecycle.STOPPED: None,
    lifecycle.KILLED: retries_by_cause.KILLED,
    lifecycle.BAD_JOB: retries_by_cause.USER_ERROR,
    lifecycle.NOT_STARTED: retries_by_cause.USER_ERROR,
    lifecycle.BAD_CHECKPOINT: retries_by_cause.BAD_CHECKPOINT,
    NOT_READY: retries_by_cause.MACHINE,
}


def cause_of(
    record: Mapping[str, Any], xids: Sequence[GpuXid] = (), *, on_gpus: bool = True
) -> str | None:
    """Return the cause of an end, a constant of `retries_by_cause`; None if the attempt ended as
    requested.

    `xids` are the errors that the driver reported for the GPUs of the attempt while it ran.
    `on_gpus` is True if it had GPUs.
    """
    outcome = record.get("outcome")
    if outcome not in lifecycle.OUTCOMES:
        outcome = lifecycle.CRASHED
    if outcome in _OF_OUTCOME:
        return _OF_OUTCOME[outcome]
    if any(is_fault(xid.code) for xid in xids):
        return retries_by_cause.GPU_FAULT
    if outcome == lifecycle.LOST:
        return retries_by_cause.REBOOT if record.get("rebooted") is True else retries_by_cause.LOST
    if mistake_of(record) is not None:
        return retries_by_cause.USER_ERROR
    if record.get("out_of_host_memory") is True:
        return retries_by_cause.HOST_MEMORY
    said = "\n".join(str(record.get(name)) for name in ("cause", "last_error", "last_lines"))
    if on_gpus and _GPU_MEMORY.search(said):  # Java has an OutOfMemoryError, too
        return retries_by_cause.GPU_MEMORY
    if xids:
        return retries_by_cause.GPU_PROGRAM
    if record.get("stalled") is True:
        return retries_by_cause.HANG
    number = record.get("signal")
    is_outside = type(number) is int and number in _OUTSIDE
    return retries_by_cause.KILLED if is_outside else retries_by_cause.RANK_DIED


def same_before(cause: str | None, before: Sequence[AttemptRow]) -> int:
    """Return how many of the attempts `before` ended with `cause` since the job last made progress.

    `before` has the oldest attempt first. The job made progress when an attempt saved a step above
    all steps saved earlier.
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
    """Return the newest step that the attempt saved; 0 if it saved no step."""
    checkpoint = record.get("checkpoint")
    return int(checkpoint["step"]) if isinstance(checkpoint, Mapping) else 0


AT_ONCE_SECONDS = 600.0
"""Seconds. If an attempt crashes within this time and has reported no step, a restart would end
in the same way.
"""

_CODE_ERRORS = frozenset(
    {
        *("SyntaxError", "IndentationError", "TabError"),
        *("ImportError", "ModuleNotFoundError"),
        *("NameError", "UnboundLocalError", "AttributeError", "TypeError", "NotImplementedError"),
    }
)
"""Python exceptions that mean that the program itself is wrong."""

_OWN_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)
"""Signals that a process gets because of its own mistake, such as SIGSEGV."""

_STATUSES = {
    2: "exit status 2 means that the program got wrong arguments",
    126: "exit status 126 means that the program cannot be executed",
    127: "exit status 127 means that a program was not found",
}
_ASKS_FOR_MORE = 75
"""Exit status with which a program asks to be started again later: EX_TEMPFAIL of sysexits.h."""
_MACHINE = re.compile(
    r"no space left|cannot allocate memory|too many open files|input/output error|"
    r"stale file handle|temporarily unavailable|timed out|quota exceeded|transport endpoint",
    re.IGNORECASE,
)
"""Patterns of error messages about the machine: their causes may pass."""
_USAGE_LINE = re.compile(r"^\S.*: error: .*$")
_LAUNCHED_STATUS = re.compile(r"^\s*exitcode\s*:\s*(-?[0-9]{1,3})\b", re.MULTILINE)
"""Exit status of torchrun after any failure of its ranks. The exit statuses of the ranks are
listed in the report that it prints.
"""
REPEATED_FACTS = ("stalled", "out_of_host_memory")
"""Keys in a supervisor's record: the ranks made no progress, or were killed because host memory
ran out.
"""
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9]{4,}\b")
"""Pattern of text that differs between two messages of the same error: addresses, process ids,
ports.
"""


def why_not_again(record: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
    """Return one sentence that says why a restart would end in the same way; None if a restart may
    succeed.

    `before` is the record of the previous attempt; None if there was no previous attempt.
    """
    if record.get("outcome") != lifecycle.CRASHED:
        return None
    mistake = mistake_of(record)
    if mistake is not None:
        return f"{mistake}, so it would fail again"
    if before is not None and _is_same_end(record, before):
        reached = _whole(record.get("steps_done"))
        where = f"at step {reached}" if reached else "before its first step"
        same = f"the previous attempt ended with the same error {where}"
        return f"{same}, and this attempt got no further"
    return None


def mistake_of(record: Mapping[str, Any]) -> str | None:
    """Return a sentence on the user's mistake that made the attempt crash; None if unknown."""
    if record.get("signal") is not None or not _ended_at_once(record):
        return None
    text, error = _text(record), _error(record)
    name = error.partition(":")[0].rpartition(".")[2] if error else ""
    if error is not None and _MACHINE.search(error):
        return None
    if name in _CODE_ERRORS:
        return f"{_clipped(error or name)}: the program itself is wrong"
    launched = _LAUNCHED_STATUS.search(text)
    status = int(launched.group(1)) if launched else record.get("exit_code")
    why = _STATUSES.get(status) if isinstance(status, int) else None
    said = next((line for line in reversed(text.splitlines()) if _USAGE_LINE.match(line)), None)
    return why if why is None or said is None else f"{_clipped(said)}: {why}"


def _ended_at_once(record: Mapping[str, Any]) -> bool:
    """Return whether the attempt ended within AT_ONCE_SECONDS and reported no step."""
    ran = record.get("ran_seconds")
    return (
        not _whole(record.get("steps_done"))
        and not record.get("checkpoint")
        and isinstance(ran, (int, float))
        and ran < AT_ONCE_SECONDS
    )


def _is_same_end(record: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    for fact in REPEATED_FACTS:
        if record.get(fact) is True and before.get(fact) is True:
            return bool(_whole(record.get("steps_done"))) and _progress(record) == _progress(before)
    number = record.get("signal")
    if number is not None and number not in _OWN_SIGNALS:
        return False
    if number is None and record.get("exit_code") in (None, _ASKS_FOR_MORE):
        return False
    if not _whole(record.get("steps_done")) and not (
        _ended_at_once(record) and _ended_at_once(before)
    ):
        return False
    error = _error(record) or ""
    return not _MACHINE.search(error) and _signature(record) == _signature(before)


def _progress(record: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the number of steps that the attempt has done, and the newest saved step."""
    checkpoint = record.get("checkpoint")
    saved = checkpoint.get("step") if isinstance(checkpoint, Mapping) else None
    return _whole(record.get("steps_done")), saved


def _signature(record: Mapping[str, Any]) -> tuple[object, ...]:
    said = _error(record) or str(record.get("cause"))
    return (
        *(record.get(name) for name in ("outcome", "exit_code", "signal")),
        *_progress(record),
        _CHANGING.sub("#", said),
    )


def _error(record: Mapping[str, Any]) -> str | None:
    """Return the last error in the output of the program; None if there is no error."""
    said = record.get("last_error")
    return said if isinstance(said, str) else last_error(_text(record))


def _text(record: Mapping[str, Any]) -> str:
    lines = record.get("last_lines")
    return lines if isinstance(lines, str) else ""


def _whole(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _clipped(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def with_shutdown(record: Mapping[str, Any], boot_id: str | None) -> Mapping[str, Any]:
    """Return `record`, changed to the end by a restart of the machine if the attempt got a SIGTERM
    that the daemon did not send, and the machine was restarted after the attempt began.

    At a shutdown systemd sends this SIGTERM. `boot_id` is the boot in which the attempt began; None
    if unknown.
    """
    if record.get("stop_reason") != OUTSIDE or boot_id in (None, procfs.boot_id()):
        return record
    if record.get("outcome") not in (lifecycle.CRASHED, lifecycle.KILLED):
        return record
    cause = f"the machine was restarted: {record.get('cause')}"
    return {**record, "outcome": lifecycle.LOST, "rebooted": True, "cause": cause}


def with_xids(
    record: Mapping[str, Any], xids: XidsByGpu, gpu_name: Callable[[str], str]
) -> Mapping[str, Any]:
    """Return `record` with the `xids`, error numbers of the GPU driver, added to its cause."""
    if not xids:
        return record
    said = "; ".join(
        f"the driver reported {codes_text(found)} of {gpu_name(uuid)}"
        for uuid, found in xids.items()
    )
    codes = {uuid: sorted({xid.code for xid in found}) for uuid, found in xids.items()}
    return {**record, "cause": f"{record.get('cause')}; {said}", "xids": codes}


LONGEST_SHOWN = 300
_BARE = re.compile(r"rank [0-9]+ (?:exited with [0-9]+|was ended by signal [0-9]+ \([A-Z0-9]+\))$")
"""Pattern of a cause that names only the exit status or the signal, and no error message."""
_OUTSIDE_ADVICE = re.compile(r"\((?:SIGKILL|SIGTERM|SIGINT|SIGHUP)\)$")
_OUTCOMES = (lifecycle.CRASHED, lifecycle.BAD_JOB, lifecycle.BAD_CHECKPOINT)
_ADVICE_OF_CAUSE: Mapping[str, str] = {
    retries_by_cause.GPU_MEMORY: "try a smaller batch per GPU with more accumulation steps, or "
    "shorter sequences",
    retries_by_cause.HOST_MEMORY: "try fewer data loader workers, or give the job more memory",
}
_ADVICE: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (
            r"ModuleNotFoundError|No module named",
            "try to install it for the job's Python, or set python to another interpreter",
        ),
        (r"no space left|quota exceeded", "try to free space: zerotools clean, df -h"),
        (r"too many open files", "try a higher limit: ulimit -n"),
        (
            r"invalid device ordinal|no CUDA GPUs are available",
            "try device numbers from 0: CUDA_VISIBLE_DEVICES shows only the job's GPUs",
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
            r"command not found|: not found$|no such file or directory",
            "try absolute paths: relative paths start in the job's directory",
        ),
    )
)


def with_explained_cause(
    record: Mapping[str, Any], kind: str | None, secrets: Sequence[str]
) -> dict[str, Any]:
    """Return `record` with the error of the program and a piece of advice added to its cause.

    `kind` is one of the causes in `retries_by_cause`. `secrets` are values that must not be shown.
    """
    cause = record.get("cause")
    if record.get("outcome") not in _OUTCOMES or not isinstance(cause, str):
        return dict(record)
    if not _BARE.fullmatch(cause) or _OUTSIDE_ADVICE.search(cause):
        return dict(record)
    error = _error_of(record)
    advice = _advice(error or "", kind)
    # A secret that is cut in two is no longer known.
    said = None if error is None else _clipped_error(mask_text(one_line(error), secrets))
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


def _clipped_error(text: str) -> str:
    plain = text.rstrip(". ;")
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[:LONGEST_SHOWN]}..."
