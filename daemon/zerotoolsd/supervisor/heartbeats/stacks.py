"""The stacks of all ranks, for the log, before an attempt that does not get on is ended.

Each rank is asked in the way that disturbs it least. One of our trainer prints its own stacks when
it gets a signal (`pulse.DUMP_SIGNAL`), from C code that needs neither the interpreter nor the right
to trace. A program of the user's, and a rank that is stopped and so cannot answer, is read from
outside by py-spy, where that is installed. What the kernel says of a process is always written.
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

from zerotoolsd.supervisor.heartbeats.pulse import DUMP_SIGNAL
from zerotoolsd.supervisor.heartbeats.rank_activity import activity, report

DUMP_SECONDS = 10.0
"""After so long nobody waits for a dump any more."""
ANSWER_SECONDS = 2.0
_REST_SECONDS = 0.5
"""For the rest of what a rank is printing."""
MOST_PROGRAMS = 32
_FILE = "stacks-{pid}.txt"
_LARGEST = 256 * 1024


class Log(Protocol):
    """Where the stacks of a process go. `seen`: how many bytes it has printed there itself."""

    seen: int

    def add(self, text: str) -> None: ...


def find_spy(program: str, path: str | None) -> str | None:
    """py-spy beside the job's interpreter, or on its PATH; None: it is not installed."""
    beside = Path(program).with_name("py-spy")
    folders = [beside.parent, *(Path(each) for each in (path or "").split(":") if each)]
    return next((str(f / "py-spy") for f in folders if os.access(f / "py-spy", os.X_OK)), None)


class StackDump:
    """The dump of some processes, which goes on beside the supervisor's loop."""

    def __init__(self, spy: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._spy, self._clock = spy, clock
        self._began = clock()
        self._asked: dict[int, tuple[Log, int]] = {}
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, Log]] = {}

    def ask(self, pid: int, log: Log, *, answers: bool) -> None:
        """Have the stacks of `pid` written; `answers`: it prints them itself when asked."""
        found = activity(pid)
        log.add(f"[zerotools: what the kernel says]\n{report(pid)}\n")
        stopped = found is not None and found.state in "Tt"
        if answers:
            with suppress(ProcessLookupError):
                before = log.seen
                os.kill(pid, DUMP_SIGNAL)  # one that is stopped answers when it is continued
                if not stopped:
                    self._asked[pid] = (log, before)
                    return
        self._look(pid, log)

    def _look(self, pid: int, log: Log) -> None:
        if self._spy is None:
            log.add(
                "[zerotools: py-spy is not installed beside the job's interpreter, so the stacks "
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
        """Processes of the dump's own."""
        return list(self._running)

    def ended(self, pids: Iterable[int]) -> None:
        """These children have ended, whoever waited for them."""
        for pid in pids:
            found = self._running.pop(pid, None)
            if found is not None:
                spy, target, log = found
                spy.returncode = 0  # the supervisor reaps every child itself
                log.add(_taken(target))

    def is_over(self) -> bool:
        """Whether all have answered, or it has taken too long; those that have not are said."""
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
    """Those of `pids` that are Python, whose stacks py-spy can tell."""
    found = []
    for pid in pids:
        try:
            name = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115  # "… (deleted)"
        except OSError:
            continue
        if name.startswith(("python", "pypy")):
            found.append(pid)
    return found[:MOST_PROGRAMS]
