"""The time of an attempt's last step, and the rank that the others wait for.

Its supervisor writes both once a second (`heartbeats.json`), by the monotonic clock, which cannot
be set. An attempt of an older supervisor has only the time of its last step. Ranks can write into
the run directory too, so impossible values are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotoolsd.queue.values import one_line
from zerotoolsd.supervisor.durable import read_json
from zerotoolsd.supervisor.heartbeats.heartbeats import FILE
from zerotoolsd.supervisor.heartbeats.rank_phases import STEPPING
from zerotoolsd.users.open_as_user import opened

_LARGEST = 256 * 1024
_TRIES = 3
_STEPS = 4.0
"""A last step that is so many steps old is an old one, and at least this many seconds:"""
_OLD_SECONDS, _LATE_SECONDS = 5.0, 60.0
"""Seconds after which a last step is old; in a step, the job is then late after the second."""
_LONGEST = 500


@dataclass(frozen=True)
class Clocks:
    """The two clocks, read at the same time."""

    monotonic: float = field(default_factory=time.monotonic)
    time: float = field(default_factory=time.time)

    def epoch_of(self, clock: object) -> float | None:
        """Convert a reading of the monotonic clock to whole seconds since 1970."""
        if not isinstance(clock, float) or not 0 <= clock <= self.monotonic + 1:
            return None
        return float(round(self.time - (self.monotonic - clock)))


def standstill(run_dir: Path, step: Mapping[str, Any] | None, clocks: Clocks) -> dict[str, Any]:
    """Return the part of `JobView.phase` with the time since the last step.

    `step` is the message of that step.
    """
    try:
        with opened(run_dir) as base:
            found = _read(base / FILE)
    except OSError:
        found = {}
    last = clocks.epoch_of(found.get("last_step_clock"))
    seconds = _seconds(found.get("step_seconds"))
    if step is not None:
        told = _seconds(step.get("time"))
        last = told if last is None else last
        seconds = _seconds(step.get("step_seconds")) if seconds is None else seconds
    age, usual = 0.0 if last is None else clocks.time - last, _STEPS * (seconds or 0.0)
    name = _name(found)
    return {
        "name": name,
        "last_step": last,
        "step_seconds": seconds,
        "step_is_old": age > max(_OLD_SECONDS, usual),
        "late": name in (None, STEPPING) and age > max(_LATE_SECONDS, usual),
        "waits_for": _awaited(found, clocks),
        "deadline_seconds": _seconds(found.get("deadline_seconds")),
        "stalled": found.get("stalled") is not None,
        "stall": _sentence(found.get("stalled")),
    }


def _read(
    path: Path, read: Callable[[Path, int], dict[str, Any] | None] = read_json
) -> dict[str, Any]:
    for _ in range(_TRIES):  # it is being written just now
        try:
            return read(path, _LARGEST) or {}
        except (OSError, ValueError):
            continue
    return {}


def _name(found: Mapping[str, Any]) -> str | None:
    """Return the phase of the straggler, or of the first rank."""
    ranks = _ranks(found)
    late = next((rank for rank in ranks if rank["rank"] == found.get("awaited")), None)
    chosen = late or next(iter(ranks), None)
    name = None if chosen is None else chosen.get("phase")
    return name[:_LONGEST] if isinstance(name, str) else None


def _awaited(found: Mapping[str, Any], clocks: Clocks) -> dict[str, Any] | None:
    """Return `rank`, its activity (`at`) since when (`since`), and the kernel's letter for its
    `state`."""
    for rank in _ranks(found):
        if rank["rank"] != found.get("awaited"):
            continue
        at, state = rank.get("at"), rank.get("state")
        return {
            "rank": rank["rank"],
            "at": at[:_LONGEST] if isinstance(at, str) else "",
            "since": clocks.epoch_of(rank.get("since_clock")),
            "state": state if isinstance(state, str) and len(state) == 1 else None,
        }
    return None


def _sentence(value: object) -> str | None:
    return one_line(value[:_LONGEST]) if isinstance(value, str) else None


def _ranks(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    ranks = found.get("ranks")
    if not isinstance(ranks, list):
        return []
    return [each for each in ranks if isinstance(each, dict) and type(each.get("rank")) is int]


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        return None
    return float(value)
