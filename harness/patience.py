"""Deadlines that hold on a busy machine too.

A deadline is written as on an idle machine, and grows with the load: with 20 processes for two
cores, each gets a tenth of what it would have. `ZEROTOOLS_TEST_PATIENCE=3` says the least factor,
for machines that are slow without being busy.
"""

from __future__ import annotations

import os
import time

VARIABLE = "ZEROTOOLS_TEST_PATIENCE"


def factor() -> float:
    """How much longer things may take now than on an idle machine; at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1.0, float(os.environ.get(VARIABLE) or 1), os.getloadavg()[0] / cores)


def patient(seconds: float) -> float:
    """`seconds` of an idle machine, in seconds of this one."""
    return seconds * factor()


class Deadline:
    """`seconds` from now on an idle machine; a load that comes meanwhile puts it off."""

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
        """Whether it is over."""
        return self.left == 0.0
