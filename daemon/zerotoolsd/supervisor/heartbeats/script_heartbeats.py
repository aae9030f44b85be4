"""The reports of users' programs (`zerotools.worker`), converted to the lines of ranks.

They have no pulse: each report is a line. A program that reports nothing has no line at all, and
only `stall.silence_limit` can detect that it stalls. When one rank has reported that the job is
complete, all ranks are in the phase COMPLETE until a step or a checkpoint is reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zerotoolsd.supervisor.heartbeats.rank_phases import (
    COMPLETE,
    EVALUATING,
    SAVING,
    STARTING,
    STEPPING,
)
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat

_PHASES = {"train": STEPPING, "eval": EVALUATING, "save": SAVING, "load": "loading"}
MOST_RANKS = 1024


class ToldBeats:
    """The newest line of each rank with a report."""

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}
        self.count = 0
        self._is_complete = False

    def take(self, message: dict[str, Any]) -> None:
        """Update from one datagram. Its rank is a number; all other values are not trusted."""
        self.count += 1
        rank = message["rank"]
        before = self.beats.get(rank, Beat())
        if rank not in self.beats and len(self.beats) >= MOST_RANKS:
            return
        phase, step = message.get("phase"), message.get("step")
        if message.get("event") in ("step", "checkpoint", "finished"):
            self._is_complete = message["event"] == "finished"
        known = _PHASES.get(phase, STARTING) if isinstance(phase, str) else before.phase
        whole = step if type(step) is int and 0 <= step < 2**63 else before.step
        self.beats[rank] = Beat(before.count + 1, known, "", whole)
        if self._is_complete:
            for each, beat in self.beats.items():
                self.beats[each] = replace(beat, phase=COMPLETE)
