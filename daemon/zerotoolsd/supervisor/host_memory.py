"""The host memory that the processes of an attempt hold, measured at a small processor cost.

Reading every process of the machine takes 5 ms with a hundred of them, and much more on a large
server. So only the names of unrelated processes are read again, because a process outside this
one's tree stays outside. (A process that reuses the pid of another is missed until the next full
scan.) If a scan still takes long, it runs less often. The supervisor's record of the family gets
these processes (`process_tree`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container

from zerotoolsd.supervisor.procfs import Process, descendants, pids, read_process, ticks_now

SHARE = 0.001
"""Share of one processor that the measurements may use."""

ALL_EVERY = 60
"""Measurements after which all processes are read again."""

Clock = Callable[[], float]


class HostMemory:
    """The memory of all processes below this one. `note` is called with a time before the scan and
    the processes, at least every `longest_pause` seconds."""

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
        """Return the resident bytes without those of the processes `beside`; None if no scan is
        due.

        Raises OSError if no descriptor is available for the scan.
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
        # A process may have become our own child if its parent was gone before it was read.
        others = {process.pid for process in found.values() if process.parent in known}
        self._others = (self._others & there) | others - {process.pid for process in ours}
        return ours
