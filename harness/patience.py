"""Deadlines that also hold on a busy machine.

A deadline is written for an idle machine, and grows with the load. For example, with 20 processes
on two cores, each process gets a tenth of a core. `ZEROTOOLS_TEST_PATIENCE=3` makes every deadline
at least three times as long, for slow machines.
"""

from __future__ import annotations

import os
import time

VARIABLE = "ZEROTOOLS_TEST_PATIENCE"


def factor() -> float:
    """Return how many times longer work takes now than on an idle machine; at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1.0, float(os.environ.get(VARIABLE) or 1), os.getloadavg()[0] / cores)


def patient(seconds: float) -> float:
    """Convert `seconds` on an idle machine to seconds on this machine under its current load."""
    return seconds * factor()


class Deadline:
    """A deadline that is `seconds` from now on an idle machine. Load in the meantime postpones
    it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = time.monotonic()
        self._factor = 0.0

    @property
    def waited(self) -> float:
        """The seconds since the deadline was made."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """The seconds until the deadline passes; never negative."""
        self._factor = max(self._factor, factor())
        return max(0.0, self.seconds * self._factor - self.waited)

    def has_passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left == 0.0
