"""Ending every descendant, also those that forked twice and made sessions of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from zerotoolsd.supervisor.logs import say
from zerotoolsd.supervisor.procfs import Process, descendants, kill_process, processes

NoteEnd = Callable[[int, int], None]
"""(pid, wait status): called while the kernel still knows it."""
_DUMPED = 0x80


def reap(note: NoteEnd = lambda pid, status: None) -> dict[int, int]:
    """Wait statuses, by pid, of all children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended
        if found is None:
            return ended
        status = _wait_status(found)
        note(found.si_pid, status)
        os.waitpid(found.si_pid, 0)
        ended[found.si_pid] = status


def _wait_status(found: os.waitid_result) -> int:
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (_DUMPED if found.si_code == os.CLD_DUMPED else 0)


def alive_below(pid: int) -> list[Process]:
    """Descendants of `pid` that are not zombies."""
    return [p for p in descendants(pid, processes()) if p.state not in "ZX"]


def kill_all(
    deadline_seconds: float,
    spare: Collection[int] = (),
    note: NoteEnd = lambda pid, status: None,
) -> tuple[dict[int, int], list[Process]]:
    """SIGKILL all descendants but `spare`, again and again, since they may fork meanwhile.

    Returns the wait statuses of those that were children, and the processes that the kernel did
    not end within the deadline (uninterruptible sleep). While the machine does not let it look (no
    descriptors), it tries again.
    """
    ended: dict[int, int] = {}
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while True:
        try:
            alive = [process for process in alive_below(os.getpid()) if process.pid not in spare]
            for process in alive:
                kill_process(process)
        except OSError as error:
            say(f"cannot look for processes that are left: {error}")
            alive, deadline = [], time.monotonic() + deadline_seconds
            looked = False
        else:
            looked = True
        ended |= reap(note)
        if looked and (not alive or time.monotonic() > deadline):
            return ended, alive
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
