"""The stacks of all ranks, for the log, before an attempt without progress is ended.

Each rank is examined by the method that disturbs it least. A rank of our trainer prints its stacks
at a signal (`shared_heartbeat.DUMP_SIGNAL`), from C code that needs neither the interpreter nor the
right to trace. Programs of users, and stopped ranks, which cannot respond, are read from outside by
py-spy if it is installed. The kernel's state of a process is always written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from zerotoolsd.supervisor.heartbeats.rank_activity import activity, report
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import DUMP_SIGNAL

DUMP_SECONDS = 10.0
"""The longest wait for a dump."""
ANSWER_SECONDS = 2.0
_REST_SECONDS = 0.5
"""The wait for the remaining output of a rank that prints its stacks."""
MOST_PROGRAMS = 32
_FILE = "stacks-{pid}.txt"
_LARGEST = 256 * 1024


class Log(Protocol):
    """Receives the stacks of a process. `seen` is the number of bytes that the process has
    printed."""

    seen: int

    def add(self, text: str) -> None: ...


def find_spy(program: str, path: str | None) -> str | None:
    """Return the py-spy next to the job's interpreter, or on its PATH; None if it is not
    installed."""
    beside = Path(program).with_name("py-spy")
    folders = [beside.parent, *(Path(each) for each in (path or "").split(":") if each)]
    return next((str(f / "py-spy") for f in folders if os.access(f / "py-spy", os.X_OK)), None)


class StackDump:
    """The dump of some processes. It runs concurrently with the supervisor's loop."""

    def __init__(self, spy: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._spy, self._clock = spy, clock
        self._began = clock()
        self._asked: dict[int, tuple[Log, int]] = {}
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, Log]] = {}

    def ask(self, pid: int, log: Log, *, answers: bool) -> None:
        """Request the stacks of `pid`; with `answers`, the process prints them itself at a
        signal."""
        found = activity(pid)
        log.add(f"[zerotools: state in the kernel]\n{report(pid)}\n")
        stopped = found is not None and found.state in "Tt"
        if answers:
            with suppress(ProcessLookupError):
                before = log.seen
                os.kill(pid, DUMP_SIGNAL)  # a stopped process prints them when it is continued
                if not stopped:
                    self._asked[pid] = (log, before)
                    return
        self._look(pid, log)

    def _look(self, pid: int, log: Log) -> None:
        if self._spy is None:
            log.add(
                "[zerotools: py-spy is not installed for the job's interpreter, so the stacks "
                "of this process cannot be shown]\n"
            )
            return
        command = (self._spy, "dump", "--nonblocking", "--pid", str(pid))
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(_FILE.format(pid=pid), flags, 0o600), "wb") as out:
                spy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        except OSError as error:
            log.add(f"[zerotools: {self._spy} cannot be started: {error.strerror}]\n")
            return
        self._running[spy.pid] = (spy, pid, log)

    @property
    def pids(self) -> list[int]:
        """The processes of the dump itself."""
        return list(self._running)

    def ended(self, pids: Iterable[int]) -> None:
        """Record that these children have ended. The caller has reaped them."""
        for pid in pids:
            found = self._running.pop(pid, None)
            if found is not None:
                spy, target, log = found
                spy.returncode = 0  # the supervisor reaps every child itself
                log.add(_taken(target))

    def is_over(self) -> bool:
        """Return whether all have responded, or the time is over; log the others."""
        passed = self._clock() - self._began
        for pid, (log, before) in list(self._asked.items()):
            if log.seen > before:
                del self._asked[pid]
            elif passed >= ANSWER_SECONDS:
                del self._asked[pid]
                log.add("[zerotools: it does not answer the signal that asks for its stacks]\n")
                self._look(pid, log)
        if not self._running and not self._asked:
            return passed >= _REST_SECONDS
        if passed < DUMP_SECONDS:
            return False
        for spy, target, log in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(spy.pid, signal.SIGKILL)
            spy.returncode = 0
            log.add(_taken(target) + f"[zerotools: py-spy took more than {DUMP_SECONDS:g} s]\n")
        self._running.clear()
        return True


def _taken(pid: int) -> str:
    path = Path(_FILE.format(pid=pid))
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode(errors="replace")
        path.unlink()
    except OSError as error:
        return f"[zerotools: the stacks of pid {pid} are lost: {error.strerror}]\n"
    return f"[zerotools: its stacks, by py-spy]\n{text}\n"


def python_programs(pids: Sequence[int]) -> list[int]:
    """Return the pids that are Python programs, which py-spy can read."""
    found = []
    for pid in pids:
        try:
            name = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115  # "… (deleted)"
        except OSError:
            continue
        if name.startswith(("python", "pypy")):
            found.append(pid)
    return found[:MOST_PROGRAMS]
