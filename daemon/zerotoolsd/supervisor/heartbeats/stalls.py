"""The action on ranks without progress: report it, write their stacks to the log, end them."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from zerotoolsd.supervisor.heartbeats.heartbeats import Heartbeats, event_of
from zerotoolsd.supervisor.heartbeats.rank_phases import END, StallLimits
from zerotoolsd.supervisor.heartbeats.stacks import StackDump, find_spy, python_programs
from zerotoolsd.supervisor.heartbeats.stall_detector import AttemptStall
from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.procfs import descendants, processes
from zerotoolsd.supervisor.progress import Progress
from zerotoolsd.supervisor.rank_log import say
from zerotoolsd.supervisor.ranks import SupervisedRank

LONGEST_GRACE = 60.0
"""Longest time in seconds that ranks have to save, if they make progress while they are ended."""
ASKED = "its ranks made no progress"
"""The reason of the stop that ranks read."""


class Stalls:
    """Looks for a stall of one attempt, and begins its end. Works in the run directory."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        on_gpus = bool(plan.gpu_uuids) and not plan.own_program
        self._limits = StallLimits.from_plan(plan.stall, on_gpus=on_gpus, sees_all=not plan.meeting)
        self._heartbeats = Heartbeats(
            self._limits, progress.told, plan.processes, own_program=plan.own_program
        )
        self._dump: StackDump | None = None
        self._stall: AttemptStall | None = None
        self.cause: str | None = None
        """The reason to end the attempt, after a stall."""
        self.rank: int | None = None
        """The rank that it is ended for."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the ranks need."""
        return self._heartbeats.variables

    @property
    def pids(self) -> Collection[int]:
        """The processes that examine the ranks."""
        return () if self._dump is None else self._dump.pids

    def look(self, ranks: Sequence[SupervisedRank]) -> bool:
        """Check the ranks; return whether the attempt must end now. Call it once a second."""
        live = {rank.index: rank for rank in ranks if rank.status is None}
        if any(rank.start is not None for rank in live.values()):
            return False  # a directory or a program does not answer, for which the attempt waits
        pids = {} if self._plan.launcher else {i: rank.pid for i, rank in live.items()}
        begun = self._heartbeats.look(pids, sum(rank.log.seen for rank in ranks))
        if self._heartbeats.awaited is not None:
            self._progress.awaited = self._heartbeats.awaited
        if begun is not None and self.cause is None:
            self._tell(begun, live)
        if self._dump is None or not self._dump.is_over():
            return False
        self._dump = None
        if self._limits.action != END:
            return False
        if self._heartbeats.stall is None:
            self._say("the ranks make progress again, and are not ended", live)
            return False
        return True

    def _tell(self, stall: AttemptStall, live: Mapping[int, SupervisedRank]) -> None:
        told = self._heartbeats.sentence or ""
        ends = self._limits.action == END
        self._stall = stall
        self._progress.stalled(event_of(stall, told, self._heartbeats.sights, ends=ends))
        then = "the job is ended" if ends else "the job continues, because of its stall settings"
        self._say(f"{told}, longer than {stall.deadline:g} s: {then}; the stacks follow", live)
        self._dump = StackDump(find_spy(self._plan.argv[0], self._plan.env.get("PATH")))
        answers = {s.rank for s in self._heartbeats.sights if s.beat.dumps}
        for rank in live.values():
            for pid in self._programs(rank):
                self._dump.ask(pid, rank.log, answers=rank.index in answers)

    def _programs(self, rank: SupervisedRank) -> list[int]:
        if not self._plan.own_program:
            return [rank.pid]
        try:
            below = [process.pid for process in descendants(rank.pid, processes())]
        except OSError as error:
            say(f"the programs of rank {rank.index} cannot be found: {error}")
            below = []
        return python_programs([rank.pid, *below]) or [rank.pid]

    def _say(self, text: str, live: Mapping[int, SupervisedRank]) -> None:
        say(text)
        for rank in live.values():
            rank.log.add(f"\n[zerotools: {text}]\n")

    def end(self, ranks: Sequence[SupervisedRank]) -> float:
        """Continue the stopped ranks, which may still save; return the seconds allowed for it.

        They have already been asked to save and stop.
        """
        self.cause = self._heartbeats.sentence or "its ranks made no progress"
        self.rank = None if self._stall is None else self._stall.rank
        for rank in ranks:
            # Not reaped yet, so the pid is still of this process. Programs of users:
            # `ending.stopping`.
            if rank.status is None and not self._plan.own_program:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGCONT)
        return min(self._plan.grace_seconds, LONGEST_GRACE)

    def ended(self, pids: Collection[int]) -> None:
        """Record that these children have ended."""
        if self._dump is not None:
            self._dump.ended(pids)

    def close(self) -> None:
        """Close the heartbeats; no rank lives any more."""
        self._heartbeats.close()
