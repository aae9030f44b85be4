"""When something was: by the calendar, and by a clock that nobody sets.

CLOCK_MONOTONIC counts from the machine's boot, for every process alike, so that it outlives a
daemon. It stands still while the machine sleeps, as the jobs do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from zerotoolsd.supervisor.procfs import boot_id


class Moment(NamedTuple):
    """`time` in seconds since the epoch; `clock` in seconds of CLOCK_MONOTONIC since the boot
    `boot_id`, where they are known."""

    time: float
    clock: float | None = None
    boot_id: str | None = None

    def seconds_since(self, earlier: Moment) -> float:
        """At least 0, whatever became of the calendar meanwhile."""
        if self.boot_id == earlier.boot_id and None not in (self.clock, earlier.clock):
            assert self.clock is not None
            assert earlier.clock is not None
            return max(0.0, self.clock - earlier.clock)
        return max(0.0, self.time - earlier.time)


def now() -> Moment:
    """This moment."""
    return Moment(time.time(), time.monotonic(), boot_id())


def began_of(run: Mapping[str, Any]) -> Moment | None:
    """When the attempt began whose `run.json` this is; None: it does not say so."""
    began = seconds_in(run, "started")
    if began is None:
        return None
    boot, clock = run.get("boot_id"), seconds_in(run, "started_clock")
    return Moment(began, clock, boot if isinstance(boot, str) else None)


def seconds_in(tree: Mapping[str, Any] | None, name: str) -> float | None:
    """A time or a span in a record into which ranks can write too; None if it is not one."""
    value = (tree or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 2**53 and math.isfinite(value) else None
