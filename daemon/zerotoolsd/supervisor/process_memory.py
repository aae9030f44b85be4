"""Measures the host memory of the descendants of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container

from zerotoolsd.supervisor.procfs import Process, all_pids, descendants, read_process, ticks_now

SHARE = 0.001
"""Fraction of the time of one processor that the measurements may use."""
ALL_EVERY = 60
"""After this many measurements all processes are read again, not only the known descendants and
new processes.
"""
Clock = Callable[[], float]


class HostMemory:
    """Measures the host memory of all descendants of this process. After the first minutes, this
    takes at most the fraction SHARE of the processor's time.

    At most `longest_pause` seconds after a measurement, the next one is due. After each
    measurement, `note` is called with the time at which it began and with the processes that were
    found.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        used: Clock = time.thread_time,
        read: Callable[[int], Process | None] = read_process,
        note: Callable[[int, list[Process]], None] = lambda moment, processes: None,
        longest_pause: float = float("inf"),
        there: Callable[[], set[int]] = all_pids,
    ) -> None:
        self._note, self._clock, self._used, self._read = note, clock, used, read
        self._there = there
        self._longest_pause = longest_pause
        self._scans = 0
        self._others: set[int] = set()
        self._due = float("-inf")

    def measure(self, excluded_pids: Container[int | None]) -> int | None:
        """Return the resident memory of all descendants in bytes; None if it is not yet time
        for the next measurement.

        Processes with a pid in `excluded_pids` do not count. Raises OSError if the machine has no
        file descriptors left.
        """
        now, used = self._clock(), self._used()
        if now < self._due:
            return None
        moment = ticks_now()
        ours = self._scan()
        self._note(moment, ours)
        # The first pauses are at most 1, 2, 4 ... seconds, as a young program grows fast.
        young = 2 ** min(self._scans - 1, ALL_EVERY)
        self._due = now + min((self._used() - used) / SHARE, self._longest_pause, young)
        return sum(process.rss_bytes for process in ours if process.pid not in excluded_pids)

    def _scan(self) -> list[Process]:
        self._scans += 1
        if not self._scans % ALL_EVERY:
            self._others = set()
        there = self._there()
        found = {pid: process for pid in there - self._others if (process := self._read(pid))}
        ours = descendants(os.getpid(), found)
        known = self._others | found.keys() | {0}
        # A process may have become our own child if its parent was gone before it was read.
        others = {process.pid for process in found.values() if process.parent in known}
        self._others = (self._others & there) | others - {process.pid for process in ours}
        return ours
