"""The loop of the supervisor: copies the output of ranks, reads their reports, handles stop
requests, and notices when ranks end.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup
from zerotoolsd.supervisor.attempt_plan import REQUEST, RUN, STOP, Plan
from zerotoolsd.supervisor.durable_files import write_json, write_reserved
from zerotoolsd.supervisor.exit_record.decide_outcome import is_abnormal
from zerotoolsd.supervisor.exit_record.process_ledgers import FAMILY, ProcessTreeFile, RankLedger
from zerotoolsd.supervisor.heartbeats.handle_stall import ASKED, StallHandler
from zerotoolsd.supervisor.hook_commands import CheckpointCommands
from zerotoolsd.supervisor.procfs import HostMemory, Process, oom_kills
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.run_checkpoint_finder import Finder, searched_directory
from zerotoolsd.supervisor.spawn_child import (
    BegunProgram,
    CannotStart,
    Execute,
    SignalWaker,
    execute_program,
)
from zerotoolsd.supervisor.start_ranks import SupervisedRank, hold_port, spawn_rank
from zerotoolsd.supervisor.stop.kill_descendants import reap_children
from zerotoolsd.supervisor.stop.leftover_processes import passing_on, processes_left
from zerotoolsd.supervisor.stop.process_kinds import is_filter
from zerotoolsd.supervisor.stop.runners_that_read_output import DRAIN_SECONDS
from zerotoolsd.supervisor.stop.stop_programs import Stop
from zerotoolsd.supervisor.stop.stop_request_file import RequestReader
from zerotoolsd.supervisor.transient_os_errors import hang_reason

TICK_SECONDS = 1.0
ALIVE_SECONDS = 10.0
"""Seconds between two updates of the modification time of `run.json`."""
HANGS_SECONDS = 5.0
"""Seconds after which a directory or program that does not respond is named in the reason that
users see for the job.
"""
LAST_KILL_SECONDS = 1.0
"""Seconds that the last killed processes have to end, at least, even if ranks have not ended."""
NOTE_SECONDS = 1.0
"""Longest time, in seconds, between two writes of the file of processes, for an attempt without
a control group.
"""
HELPER_SECONDS, OFTEN_SECONDS = 0.5, 0.05
"""Seconds that other processes of a script have to end after the last rank has, and seconds between
two looks at them.
"""
SETTLE_SECONDS = 1.0
"""Seconds that the other ranks have to report their errors after one rank has failed."""


class RankMonitor:
    """Watches all ranks of one attempt until the last rank has ended. The run directory is the
    working directory.
    """

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        ledger: RankLedger,
        group: AttemptGroup | None = None,
        execute: Execute = execute_program,
    ) -> None:
        self._group = group
        self._execute = execute
        self.plan = plan
        self.progress = progress
        self._ledger = ledger
        self.ranks: list[SupervisedRank] = []
        self.killed_because: str | None = None
        self.left: list[Process] = []
        """The processes that a user's program has left behind when it ended, except filters."""
        self.cannot_start: CannotStart | None = None
        """The error because of which a rank could not be started; None if none exists."""
        self._kill_at: float | None = None
        self._kill_why = ""
        self._give_up_at: float | None = None
        self._requests = RequestReader(plan.grace_seconds)
        self._stop = Stop(launcher=plan.launcher)
        self._unwritten_reason: str | None = None
        """The reason of a requested stop while the stop file could not be written yet; None
        otherwise.
        """
        self.finder: Finder | None = None
        self._identity: Mapping[str, Any] = {}
        self._is_noted = True
        """True if `run.json` contains the current state of the ranks."""
        self._checkpoint_commands = CheckpointCommands(plan, progress)
        self._stop_by: float | None = None
        self.stalls = StallHandler(plan, progress)
        # A control group always knows all processes; without a group, only this file lists them.
        pause = NOTE_SECONDS if group is None else float("inf")
        self._memory = HostMemory(note=ProcessTreeFile(Path(FAMILY)).write, longest_pause=pause)
        self._oom_kills = oom_kills()
        self._selector = selectors.DefaultSelector()
        self._selector.register(progress.socket, selectors.EVENT_READ, progress.drain)
        self._signals = SignalWaker()
        self._selector.register(self._signals.socket, selectors.EVENT_READ, self._signals.clear)
        self._selector.register(self._stop, selectors.EVENT_READ, self._advance_stop)
        self._port: socket.socket | None = None

    @property
    def stop_reason(self) -> str | None:
        """Return the reason of the requested stop; None if no stop was requested."""
        return self._requests.reason

    def stop_asked(self) -> bool:
        """Return whether a stop was requested. The ranks may not know it yet."""
        return self._signals.asked or Path(REQUEST).exists()

    def out_of_time(self) -> bool:
        """Handle a new stop request, and return whether the grace period of a stop is over."""
        self.handle_stop_request()
        return self._stop_by is not None and time.monotonic() >= self._stop_by

    def add_finder(self, finder: Finder) -> None:
        """Also read the output of the checkpoint finder `finder` while the ranks run."""
        self.progress.record_wait(None)
        self.finder = finder
        self._selector.register(finder.stdout, selectors.EVENT_READ, self._read_finder)

    def report_finder_wait(self, seconds: float) -> None:
        """Record for users that the checkpoint finder has been searching for `seconds`."""
        if seconds >= HANGS_SECONDS:
            self.progress.record_wait(f"looks for checkpoints in {searched_directory()}", seconds)
            _mark_alive()

    def _read_finder(self) -> None:
        if self.finder is not None and not self.finder.drain(self.progress):
            self._selector.unregister(self.finder.stdout)
            log_line("the search for checkpoints has ended; another follows after the ranks")

    @property
    def helpers(self) -> list[int]:
        """Return a list with the pid of the checkpoint finder, or [] if no finder runs."""
        return [] if self.finder is None else [self.finder.pid]

    def spawn(self) -> None:
        """Begin to start all ranks. If the program of a rank cannot be executed, `run` reports
        it.

        Raises OSError if the machine lacks a resource for a rank. In this case the ranks that were
        started before it are running.
        """
        self._port = hold_port()  # until the ranks have ended
        port = int(self._port.getsockname()[1])
        self.plan = self.plan._replace(env={**self.plan.env, **self.stalls.variables})
        self._ledger.begin()
        entrance = None if self._group is None else self._group.procs_path
        try:
            for index in range(self.plan.processes):
                log = Path(f"rank-{index}.log")
                self._add(spawn_rank(self.plan, index, port, log, entrance, self._execute))
        except OSError:
            for rank in self.ranks:  # the end takes descriptors, too
                self._forget_start(rank)
            raise

    def note_ranks(self, identity: Mapping[str, Any]) -> None:
        """Write the ranks and `identity` into `run.json`. Other processes read this file later
        to find the ranks.

        A write that fails is repeated, because the ranks are not to blame for a full disk.
        """
        self._identity, self._is_noted = identity, False
        self._note_ranks()

    def _note_ranks(self) -> None:
        if self._is_noted:
            return
        lines = [{"rank": rank.index, "pid": rank.pid, **rank.bound} for rank in self.ranks]
        try:
            write_json(Path(RUN), {**self._identity, "ranks": lines})
        except OSError as error:
            log_line(f"{RUN}: {error}")
        else:
            self._is_noted = True

    def _add(self, rank: SupervisedRank) -> None:
        self._ledger.started(rank.index, rank.pid)
        self.ranks.append(rank)
        self._selector.register(rank.log.read_fd, selectors.EVENT_READ, rank)
        if rank.start is not None:
            hear = partial(self._check_start, rank)
            self._selector.register(rank.start.fd, selectors.EVENT_READ, hear)

    def _check_start(self, rank: SupervisedRank) -> None:
        if rank.start is None:
            return
        try:
            if not rank.start.is_over():
                return
        except CannotStart as error:
            self.cannot_start = self.cannot_start or error
            self._kill_in(0, str(error))
        self._note_binding(rank, rank.start)
        self._forget_start(rank)

    def _note_binding(self, rank: SupervisedRank, start: BegunProgram) -> None:
        planned = rank.binding
        if planned is not None and (kept := start.applied_binding(planned)) != planned:
            rank.binding, self._is_noted = kept, False
            log_line(f"rank {rank.index} is not bound as planned: {kept.why}")

    def _forget_start(self, rank: SupervisedRank) -> None:
        if rank.start is not None:
            self._selector.unregister(rank.start.fd)
            rank.start.close()
            rank.start = None

    def _report_hanging_start(self, now: float) -> None:
        """Report to users which directory or program does not respond while a rank is being
        started. `now` is the current time in seconds.
        """
        starts = (rank.start for rank in self.ranks if rank.start is not None)
        late = next((start for start in starts if now - start.began >= HANGS_SECONDS), None)
        if late is None:
            self.progress.record_wait(None)
        else:
            self.progress.record_wait(hang_reason(late.awaited), now - late.began)

    def run(self) -> None:
        """Run the loop until every rank has ended, or a killed rank does not end in time."""
        self._sample_memory()
        next_sample = next_sign = time.monotonic() + TICK_SECONDS / 4
        while self._must_continue():
            self.handle_stop_request()
            self._wait()
            self._note_ends(reap_children(self._note_end))
            if not self._stop.seconds_left:
                self._advance_stop()
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_ranks()
            if self._give_up_at is not None and now >= self._give_up_at:
                return
            if now >= next_sample:
                self._sample_memory()
                self._report_hanging_start(now)
                self._write_stop_file()
                self._note_ranks()
                self._check_for_stall()
                self._checkpoint_commands.start_due()
                next_sample = now + TICK_SECONDS
            if now >= next_sign:
                _mark_alive()
                next_sign = now + ALIVE_SECONDS
        if self.plan.own_program and self.killed_because is None and not self._stop.has_begun:
            self._await_output()

    def _await_output(self) -> None:
        """Wait until the processes that pass on the last output of the ranks have ended, at most
        DRAIN_SECONDS. After that, other processes have HELPER_SECONDS to end; note the rest.
        """
        self._kill_at = None
        passed = now = time.monotonic()
        end = now + DRAIN_SECONDS
        try:
            while left := processes_left(self._not_of_job):
                if now < end and passing_on(left):
                    passed = now
                elif now >= passed + HELPER_SECONDS:
                    break
                self._wait(OFTEN_SECONDS)
                self._note_ends(reap_children(self._note_end))
                now = time.monotonic()
            self.left = [each for each in left if not is_filter(each)]
        except OSError as error:
            log_line(f"cannot search for the readers of the last output: {error}")

    @property
    def _not_of_job(self) -> set[int | None]:
        return {*self.helpers, *self._checkpoint_commands.pids, *self.stalls.pids}

    def _check_for_stall(self) -> None:
        if self.stalls.check(self.ranks) and self.stop_reason is None:
            self._unwritten_reason = ASKED
            self._write_stop_file()
            grace = self.stalls.end(self.ranks)
            self._begin_stop_of_programs(grace)
            self._kill_in(grace, str(self.stalls.cause))

    def _wait(self, longest: float = TICK_SECONDS) -> None:
        timeout = min(longest, self._stop.seconds_left)
        if self._kill_at is not None:
            timeout = min(timeout, max(0.0, self._kill_at - time.monotonic()))
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, SupervisedRank):
                if not key.data.log.drain():
                    self._selector.unregister(key.fileobj)
            else:
                key.data()

    def _note_ends(self, ended: dict[int, int]) -> None:
        self._checkpoint_commands.ended(ended)
        self.stalls.ended(ended)
        by_pid = {rank.pid: rank for rank in self.ranks if rank.status is None}
        for pid in ended.keys() & by_pid.keys():
            rank = by_pid[pid]
            rank.status = self._stop.status_of(pid, ended[pid])
            rank.ended_clock = time.monotonic()
            if rank.signal == signal.SIGKILL and not rank.killed:
                self._note_oom(rank)
            self._check_start(rank)
            if self._stop.has_begun:
                continue  # other ranks may be saving, within their grace period
            if is_abnormal(rank, own_program=self.plan.own_program):
                self._kill_in(SETTLE_SECONDS, f"rank {rank.index} had failed")
            elif not self.plan.own_program:
                limit = self.plan.straggler_seconds
                why = (
                    f"rank {rank.index} had finished, but another rank still ran {limit:g} s later"
                )
                self._kill_in(limit, why)

    def _note_oom(self, rank: SupervisedRank) -> None:
        before, self._oom_kills = self._oom_kills, oom_kills()
        if before is not None and self._oom_kills is not None:
            rank.oom_killed = self._oom_kills > before

    def _kill_in(self, seconds: float, why: str) -> None:
        at = time.monotonic() + seconds
        if self._kill_at is None or at < self._kill_at:
            self._kill_at, self._kill_why = at, why

    def handle_stop_request(self) -> None:
        """Read the stop request, and handle a new or changed one."""
        request = self._requests.poll(signalled=self._signals.asked)
        if request is None:
            return
        self._unwritten_reason = request.reason or self._unwritten_reason
        self._write_stop_file()
        if request.is_first:
            self._begin_stop(request.grace_seconds or 0.0)
        elif request.grace_seconds is not None:  # it leaves less time than the first
            grace = request.grace_seconds
            self._stop_by = time.monotonic() + grace
            left = f"only {grace:g} s" if grace else "no time"
            self._kill_in(grace, f"it had {left} to save and stop")

    def _begin_stop(self, grace: float) -> None:
        self.progress.drain()
        for rank in self.ranks:
            self._check_start(rank)
        # If one of several ranks runs already, it may save: it has its grace period.
        if self.plan.own_program and all(rank.start is not None for rank in self.ranks):
            self._kill_in(0, "stopped before it began")
            return
        self._begin_stop_of_programs(grace)
        if not self.plan.own_program and not self.progress.trained:
            self._kill_in(0, "stopped before training began")
            return
        self._kill_in(grace, f"did not stop within {grace:g} s after the request")

    def _begin_stop_of_programs(self, grace: float) -> None:
        self._stop_by = time.monotonic() + grace
        if self.plan.own_program and self._running and not self._stop.has_begun:
            self._stop.begin(self._running, grace, self._not_of_job)

    def _advance_stop(self) -> None:
        self._stop.advance(self._running)

    @property
    def _running(self) -> list[int]:
        return [rank.pid for rank in self.ranks if rank.status is None]

    def _must_continue(self) -> bool:
        """Return whether the loop must continue: a rank is running, or after a stop a program
        has time left to end.
        """
        return bool(self._running) or not (self._stop.is_over or self.out_of_time())

    def _note_end(self, pid: int, status: int) -> None:
        self._ledger.ended(pid, self._stop.status_of(pid, status))

    def _write_stop_file(self) -> None:
        """Write the stop file, which tells the ranks to save and stop. A write that fails is
        repeated.

        Ranks that never see the file are killed after their grace period.
        """
        if self._unwritten_reason is None:
            return
        try:
            write_reserved(Path(STOP), self._unwritten_reason)
        except OSError as error:
            log_line(f"{STOP}: {error}")
        else:
            self._unwritten_reason = None

    def _kill_ranks(self) -> None:
        self.killed_because = self._kill_why
        self._note_ends(reap_children(self._note_end))
        for rank in self.ranks:
            if rank.status is None:
                rank.killed = True
                self._ledger.killed(rank.index)
                # Not reaped yet, so the pid is still of this process.
                os.kill(rank.pid, signal.SIGKILL)
        self._kill_at = None
        self._give_up_at = time.monotonic() + self.plan.kill_seconds

    @property
    def kill_seconds(self) -> float:
        """Return the seconds that processes have to end after SIGKILL."""
        if self._give_up_at is None:
            return self.plan.kill_seconds
        return max(LAST_KILL_SECONDS, self._give_up_at - time.monotonic())

    def _sample_memory(self) -> None:
        if self.plan.watches:
            return  # the watched process holds the memory, and its watcher reports that
        try:
            used = self._memory.measure(self._not_of_job)
        except OSError as error:  # no descriptors: the ranks are not to blame
            log_line(f"the memory of the ranks cannot be measured: {error}")
            return
        if used is not None:
            self.progress.record_host_bytes(used)

    def close(self) -> None:
        """Copy the remaining output of the ranks to their logs, and close all files."""
        self.progress.drain()
        if self._port is not None:
            self._port.close()
        for rank in self.ranks:
            self._forget_start(rank)
            rank.log.drain()
            rank.log.close()
        self.stalls.close()
        self._stop.close()
        self._selector.close()
        self._signals.close()


def _mark_alive() -> None:
    """Set the modification time of `run.json` to now. This time later shows how long the supervisor
    was running.

    Files of the ranks are not used for this, because their file system may hang.
    """
    with suppress(OSError):
        os.utime(RUN)
