"""Ending every descendant, also those that forked twice and made sessions of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from zerotoolsd.supervisor.procfs import Process, descendants, kill_process, processes


def reap() -> dict[int, int]:
    """Wait statuses, by pid, of all children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def alive_below(pid: int) -> list[Process]:
    """Descendants of `pid` that are not zombies."""
    return [p for p in descendants(pid, processes()) if p.state not in "ZX"]


def kill_all(
    deadline_seconds: float, spare: Collection[int] = ()
) -> tuple[dict[int, int], list[Process]]:
    """SIGKILL all descendants but `spare`, again and again, since they may fork meanwhile.

    Returns the wait statuses of those that were children, and the processes that the kernel did
    not end within the deadline (uninterruptible sleep).
    """
    ended: dict[int, int] = {}
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while True:
        alive = [process for process in alive_below(os.getpid()) if process.pid not in spare]
        for process in alive:
            kill_process(process)
        ended |= reap()
        if not alive or time.monotonic() > deadline:
            return ended, alive
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
