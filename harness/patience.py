"""Deadlines that also hold on a busy machine.

A deadline is written for an idle machine, and grows with the load: with 20 processes on two cores,
each gets a tenth of the processor time. `ZEROTOOLS_TEST_PATIENCE=3` sets the least factor, for
machines that are slow without being busy.
"""

from __future__ import annotations

import os
import time

VARIABLE = "ZEROTOOLS_TEST_PATIENCE"


def factor() -> float:
    """Return the factor by which work takes longer now than on an idle machine; at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1.0, float(os.environ.get(VARIABLE) or 1), os.getloadavg()[0] / cores)


def patient(seconds: float) -> float:
    """Convert `seconds` of an idle machine to seconds of this one."""
    return seconds * factor()


class Deadline:
    """A deadline `seconds` from now on an idle machine; load in the meantime postpones it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = time.monotonic()
        self._factor = 0.0

    @property
    def waited(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds until it passes; never negative."""
        self._factor = max(self._factor, factor())
        return max(0.0, self.seconds * self._factor - self.waited)

    def has_passed(self) -> bool:
        """Return whether it has passed."""
        return self.left == 0.0
