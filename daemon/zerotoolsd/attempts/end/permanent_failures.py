"""The decision to repeat a crashed attempt, by its end and that of the one before it. Pure.

Most crashes are transient: a GPU fell off the bus, a peer was killed, a file server was slow. Some
repeat at every attempt, and cost minutes of a GPU each time. Two kinds are detected:

- A user's mistake: the program reported wrong arguments (exit status 2, as argparse does), it could
  not be run at all (126 and 127 of a shell), or Python stopped at once with an error of the code
  itself (SyntaxError, ImportError, NameError, ...). One attempt shows it.
- The same end twice: two attempts one after the other, without progress between them, ended with
  the same status and the same last error, stalled at the same step, or ran out of host memory at
  it. A third would fail again.

Example: `train.py --lr fast` ends with 2 after 3 s and is not repeated; a job that reports
`ValueError: loss is NaN` at step 40, is restarted from step 30 and reports it again at step 40, is
not restarted again.

Always repeated: an attempt that a signal from outside ended (SIGKILL, SIGTERM), and one that ran
for long without any report, so that its progress is unknown.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from zerotoolsd.queue import lifecycle
from zerotoolsd.supervisor.exit_record.last_error import last_error

AT_ONCE_SECONDS = 600.0
"""An attempt that reported no step and ran longer than this may have got somewhere."""

_CODE_ERRORS = frozenset(
    {
        *("SyntaxError", "IndentationError", "TabError"),
        *("ImportError", "ModuleNotFoundError"),
        *("NameError", "UnboundLocalError", "AttributeError", "TypeError", "NotImplementedError"),
    }
)
"""Exceptions that say that the program itself is wrong."""

_OWN_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS}
)
"""Signals that a process causes itself."""

_STATUSES = {
    2: "exit status 2 means that the program got wrong arguments",
    126: "exit status 126 means that the program cannot be executed",
    127: "exit status 127 means that a program was not found",
}
_ASKS_FOR_MORE = 75
"""sysexits.h's EX_TEMPFAIL: try again later."""
_MACHINE = re.compile(
    r"no space left|cannot allocate memory|too many open files|input/output error|"
    r"stale file handle|temporarily unavailable|timed out|quota exceeded|transport endpoint",
    re.IGNORECASE,
)
"""Error messages of the machine, which may be transient."""
_USAGE_LINE = re.compile(r"^\S.*: error: .*$")
_LAUNCHED_STATUS = re.compile(r"^\s*exitcode\s*:\s*(-?[0-9]{1,3})\b", re.MULTILINE)
"""torchrun ends with 1, whatever the status of its ranks, and lists their statuses in its
report."""
REPEATED_FACTS = ("stalled", "out_of_host_memory")
"""Facts in a supervisor's record: that ranks stalled, or were killed because host memory ran
out."""
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9]{4,}\b")
"""Parts that differ between two messages of the same error: addresses, process ids, ports."""


def why_not_again(record: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
    """Return why not to repeat an attempt with this `record`, in one sentence; None to repeat it.

    `before` is the record of the attempt before it, if there was one.
    """
    if record.get("outcome") != lifecycle.CRASHED:
        return None
    mistake = mistake_of(record)
    if mistake is not None:
        return f"{mistake}, so it would fail again"
    if before is not None and _is_same_end(record, before):
        reached = _whole(record.get("steps_done"))
        where = f"at step {reached}" if reached else "before its first step"
        return f"the attempt before ended with the same error {where}, and this one got no further"
    return None


def mistake_of(record: Mapping[str, Any]) -> str | None:
    """Return the user's mistake that ended a crashed attempt, in one sentence; None if none is
    known."""
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
    """Return whether it reported no progress, and ran only briefly."""
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
            return bool(_whole(record.get("steps_done"))) and _place(record) == _place(before)
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


def _place(record: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the progress: steps done, and the newest saved step."""
    checkpoint = record.get("checkpoint")
    saved = checkpoint.get("step") if isinstance(checkpoint, Mapping) else None
    return _whole(record.get("steps_done")), saved


def _signature(record: Mapping[str, Any]) -> tuple[object, ...]:
    said = _error(record) or str(record.get("cause"))
    return (
        *(record.get(name) for name in ("outcome", "exit_code", "signal")),
        *_place(record),
        _CHANGING.sub("#", said),
    )


def _error(record: Mapping[str, Any]) -> str | None:
    """Return the program's last error; its supervisor searched more of the output than it kept."""
    said = record.get("last_error")
    return said if isinstance(said, str) else last_error(_text(record))


def _text(record: Mapping[str, Any]) -> str:
    lines = record.get("last_lines")
    return lines if isinstance(lines, str) else ""


def _whole(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _clipped(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
