"""Reads the heartbeats of all ranks of an attempt, once a second."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.heartbeats.shared_heartbeat import VARIABLE, Beat, HeartbeatReader
from zerotoolsd.supervisor.heartbeats.stall_detector import (
    NCCL_ADVICE,
    AttemptStall,
    RankState,
    StallDetector,
    activity_text,
    hangs_together,
    stall_sentence,
    straggler_of,
)
from zerotoolsd.supervisor.heartbeats.stall_limits import (
    COMPLETE,
    EVALUATING,
    OFF,
    SAVING,
    STARTING,
    STEPPING,
    StallLimits,
)
from zerotoolsd.supervisor.procfs import Activity, process_state
from zerotoolsd.supervisor.rank_log import log_line

FILE = "heartbeats.json"
QUIET_SECONDS = 3.0
"""Seconds without a heartbeat after which the state of the rank's process is read from /proc."""
BETWEEN_SECONDS = 4.0
"""Seconds between two reads of /proc. One read costs as much as all other work in a second."""
_MOST_SHOWN = 64


class Heartbeats:
    """Keeps the current phase of each rank, and writes the file `heartbeats.json` for clients.

    The run directory must be the working directory.
    """

    def __init__(
        self, limits: StallLimits, reported: ScriptHeartbeats, ranks: int, *, own_program: bool
    ) -> None:
        self._attention = StallDetector(limits)
        self._reported = reported
        self._heard, self._output = 0, 0
        self._reader: HeartbeatReader | None = None
        if not own_program:
            try:
                self._reader = HeartbeatReader(ranks)
            except OSError as error:
                log_line(f"the ranks cannot send heartbeats: {error}")
        self._file: int | None = None
        self._written = ""
        self.sights: list[RankState] = []
        self._activities: dict[int, Activity | None] = {}
        self._next_activities = 0.0
        self.stall: AttemptStall | None = None
        self.sentence: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables through which the ranks find the heartbeat memory."""
        return {} if self._reader is None else {VARIABLE: self._reader.path}

    @property
    def awaited(self) -> int | None:
        """Return the number of the rank that the others wait for; None if unknown."""
        late = straggler_of(self.sights)
        return None if late is None else late.rank

    def poll(self, pids: Mapping[int, int], output: int) -> AttemptStall | None:
        """Read the heartbeats of the running ranks. Return the stall if one begins at this call;
        None otherwise.

        `pids` maps the number of a rank to its pid. It is empty for a job with a launcher, because
        only the launcher knows the pids of its ranks. `output` is the number of bytes that all
        ranks have printed so far.
        """
        if (self._reported.count, output) != (self._heard, self._output):
            self._heard, self._output = self._reported.count, output
            self._attention.reset_silence()
        beats = self._beats(pids)
        now = time.monotonic()
        quiet = {sight.rank for sight in self.sights if sight.quiet >= QUIET_SECONDS}
        if now >= self._next_activities or not quiet <= self._activities.keys():
            self._activities = {rank: process_state(pids[rank]) for rank in quiet & pids.keys()}
            self._next_activities = now + BETWEEN_SECONDS
        found = {rank: self._activities.get(rank) for rank in quiet & beats.keys()}
        self.sights = self._attention.update(beats, now, found)
        before, self.stall = self.stall, self._attention.stall(self.sights)
        if self.stall is not None and before is None:  # now examine all of them
            found = {rank: process_state(pid) for rank, pid in pids.items() if rank in beats}
            self.sights = self._attention.update(beats, now, found)
            self.stall = self._attention.stall(self.sights)
        self.sentence = None if self.stall is None else self._stall_text(self.stall)
        if self._attention.limits.action == OFF:
            self.stall = None
        self._write()
        return self.stall if before is None else None

    def _beats(self, pids: Mapping[int, int]) -> dict[int, Beat]:
        if self._reader is None:
            known = self._reported.beats.items()
            return {rank: beat for rank, beat in known if not pids or rank in pids}
        found = {rank: self._reader.read(rank) for rank in pids}
        told = self._reported.beats
        return {rank: beat if beat.number else told.get(rank, beat) for rank, beat in found.items()}

    def _stall_text(self, stall: AttemptStall) -> str:
        if stall.is_silent:
            return f"neither output nor a report for {int(stall.seconds)} s"
        words = stall_sentence(self.sights, stall.rank)
        hangs = self._attention.limits.on_gpus and hangs_together(self.sights)
        return f"{words}; {NCCL_ADVICE}" if hangs else words

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `heartbeats.json`. Durations are in seconds, times are in
        seconds of the monotonic clock.
        """
        attention, now = self._attention, time.monotonic()
        late = straggler_of(self.sights)
        return {
            "clock": now,
            "step": max((sight.beat.step for sight in self.sights), default=0),
            "last_step_clock": now - attention.since_step if attention.has_stepped else None,
            "step_seconds": attention.step_seconds,
            "deadline_seconds": attention.deadline(self.sights) if self.sights else None,
            "stalled": self.sentence if self.stall is not None else None,
            "awaited": None if late is None else late.rank,
            "waits": None if late is None else stall_sentence(self.sights, late.rank),
            "ranks": [_rank_json(sight, now) for sight in self.sights[:_MOST_SHOWN]],
        }

    def _write(self) -> None:
        """Overwrite `heartbeats.json` in place. Readers repeat a read of a partly written file."""
        with suppress(OSError):
            if self._file is None:
                flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(FILE, flags, 0o600)
            data = json.dumps(self.to_json()).encode() + b"\n"
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))

    def close(self) -> None:
        """Close and remove the heartbeat files. Call this after the last rank has ended."""
        if self._reader is not None:
            self._reader.close()
        if self._file is not None:
            os.close(self._file)
        with suppress(OSError):
            Path(FILE).unlink()


def _rank_json(sight: RankState, now: float) -> dict[str, Any]:
    found: Activity | None = sight.activity
    return {
        "rank": sight.rank,
        "phase": sight.beat.phase,
        "at": activity_text(sight.beat),
        "step": sight.beat.step,
        "since_clock": now - sight.quiet,
        "waits": sight.beat.waits,
        "state": None if found is None else found.state,
    }


def event_of(
    stall: AttemptStall, cause: str, sights: Sequence[RankState], *, ends: bool
) -> dict[str, Any]:
    """Return the JSON object that describes `stall` in `progress.jsonl`.

    `cause` is the cause in one sentence, and `sights` are the states of the ranks. `ends` says
    whether the attempt is ended because of the stall.
    """
    return {
        "event": "stall",
        "time": time.time(),
        "why": cause,
        "stalled_rank": stall.rank,
        "seconds": stall.seconds,
        "deadline_seconds": stall.deadline,
        "ends": ends,
        "at": {str(sight.rank): activity_text(sight.beat) for sight in sights[:_MOST_SHOWN]},
    }


_PHASES = {"train": STEPPING, "eval": EVALUATING, "save": SAVING, "load": "loading"}
MOST_RANKS = 1024


class ScriptHeartbeats:
    """Keeps the newest report of each rank of a user's program (`zerotools.worker`), in the form of
    a heartbeat.
    """

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}
        self.count = 0
        self._is_complete = False

    def update(self, message: dict[str, Any]) -> None:
        """Update the state of one rank from the datagram `message`.

        The caller has checked that the rank in `message` is a number; all other values may be
        invalid.
        """
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
        self.beats[rank] = Beat(before.number + 1, known, "", whole)
        if self._is_complete:
            for each, beat in self.beats.items():
                self.beats[each] = beat._replace(phase=COMPLETE)
