"""How much host memory the processes of an attempt hold, for a small part of a processor.

A look at every process of the machine takes 5 ms where there are a hundred, and much more on a
large server. So of all others only the names are read again: a process that was not below this one
will not be. (One that takes over the pid of another is missed until all are read again, now and
then.) Where even that takes long, it is done less often. Whoever has to find these processes again
is told of them (`family`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container

from zerotoolsd.supervisor.procfs import Process, descendants, pids, read_process, ticks_now

SHARE = 0.001
"""Of a processor: what the measurements may take."""

ALL_EVERY = 60
"""So many measurements later all processes are read again."""

Clock = Callable[[], float]


class HostMemory:
    """The memory of all processes below this one. `note` is called with the processes, and a time
    before they were looked at, each `longest_pause` seconds at least."""

    def __init__(
        self,
        clock: Clock = time.monotonic,
        used: Clock = time.thread_time,
        read: Callable[[int], Process | None] = read_process,
        note: Callable[[int, list[Process]], None] = lambda moment, processes: None,
        longest_pause: float = float("inf"),
        there: Callable[[], set[int]] = pids,
    ) -> None:
        self._note, self._clock, self._used, self._read = note, clock, used, read
        self._there = there
        self._longest_pause = longest_pause
        self._looks = 0
        self._others: set[int] = set()
        self._due = float("-inf")

    def measure(self, beside: Container[int | None]) -> int | None:
        """Bytes that are resident, but for those of processes `beside`; None: it is not due.

        Raises OSError: there is no descriptor to look with.
        """
        now, used = self._clock(), self._used()
        if now < self._due:
            return None
        moment = ticks_now()
        ours = self._look()
        self._note(moment, ours)
        self._due = now + min((self._used() - used) / SHARE, self._longest_pause)
        return sum(process.rss_bytes for process in ours if process.pid not in beside)

    def _look(self) -> list[Process]:
        self._looks += 1
        if not self._looks % ALL_EVERY:
            self._others = set()
        there = self._there()
        found = {pid: process for pid in there - self._others if (process := self._read(pid))}
        ours = descendants(os.getpid(), found)
        known = self._others | found.keys() | {0}
        # One whose parent was gone before it was read may have become our own child meanwhile.
        others = {process.pid for process in found.values() if process.parent in known}
        self._others = (self._others & there) | others - {process.pid for process in ours}
        return ours
