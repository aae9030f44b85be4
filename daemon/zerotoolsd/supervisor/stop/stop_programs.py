"""Stops an attempt: its programs save and end, and its script starts no further command.

A shell continues as soon as its program ends: `train && publish` would publish. So the stop handles
the tree of processes from the top down:

    runner (shell, make)  SIGSTOP; its children are read when it is stopped, so none are missed
    program               SIGTERM, once. Programs that it starts while it saves get no signal
    filter (tee, grep)    no signal: it ends with the program that it reads from
    reader (x=$(train))   SIGSTOP, when it has read the output of the programs

When no program below a runner is left, the runner ends. A runner that handles SIGTERM (`trap`) gets
the signal and is continued, and then counts as a program. Any other runner is killed before it runs
again; its wait status is replaced by that of its programs. Example, a rank with a stop in its
second line:

    bash                  stopped                                ended: its status is 0
      python prepare.py   has ended
      python train.py     SIGTERM    saves    exits with 0
      (python publish.py)                                        never begins

A launcher keeps running, because its ranks may need it. Ranks that it starts again get SIGTERM at
the next scan. Programs that a `trap` starts get it too, but only in the second half of the grace
period, because the trap may use them to save.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Set

from zerotoolsd.supervisor.procfs import Process, children_of, read_process, zombie_status
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.signal_process import open_process, send_signal
from zerotoolsd.supervisor.stop import keep_pipes_open
from zerotoolsd.supervisor.stop import process_kinds as kinds
from zerotoolsd.supervisor.stop.process_kinds import ProcessKind, TermEffect, is_filter, kind_of
from zerotoolsd.supervisor.stop.runners_that_read_output import DRAIN_SECONDS, Flow, Key, Readers

LOOK_SECONDS, OFTEN_SECONDS = 0.5, 0.05
"""Seconds between two calls of `advance`: while all runners are stopped, and while one of them
runs.
"""
_BY_SIGTERM = (signal.SIGTERM, (128 + signal.SIGTERM) << 8)
"""Wait statuses of shells that were ended by SIGTERM. mksh handles the signal and exits with a
status of its own.
"""
_SAVED = (0, 75 << 8)
"""Wait statuses of programs that have saved and ended as they were asked to."""


class _StoppedProcess:
    """A process that the stop has already handled. `above` are the runners above this process in
    the process tree, up to the rank. `writes` has the pipes to which the process writes, by their
    names in /proc.
    """

    def __init__(self, process: Process, above: tuple[Key, ...], fd: int, writes: Set[str]) -> None:
        self.process = process
        self.above = above
        self.fd = fd
        self.writes = writes


class _SuspendedRunner(_StoppedProcess):
    """A runner (a shell, `make`) that the stop has halted with SIGSTOP."""

    filters_count = False
    """True if the runner runs only filters. Then the filters count as its programs."""


class _TerminatedProcess(_StoppedProcess):
    """A process that got SIGTERM: a program, or a runner that handles it (`is_runner`)."""

    is_runner = False
    saves = False
    """True if the process handles SIGTERM, so that it can save."""


class Stop:
    """Stops all programs among the descendants of some root processes.

    `launcher` is True if the roots are launchers, which start the programs as ranks.
    """

    def __init__(self, *, launcher: bool) -> None:
        self._launcher = launcher
        self._statuses: dict[int, int] = {}
        """Wait statuses of the programs that each ended runner has run, by the pid of the
        runner.
        """
        self.cut: set[int] = set()
        """Pids of runners that were killed before they could run their next command."""
        self.reached: list[int] = []
        """Pids of processes that got SIGTERM."""
        self._late_at: float | None = None
        """Time from which on programs that a `trap` has started get SIGTERM too; None before
        the stop begins.
        """
        self._others: set[int | None] = set()
        self._orphans: list[int] = []
        self._all_asked = False
        """True if SIGTERM was also sent to orphans that may be servers. They get it last,
        because programs may need them in order to save.
        """
        self._next = float("inf")
        self._ends = select.epoll()
        self._suspended: dict[Key, _SuspendedRunner] = {}
        self._asked: dict[Key, _TerminatedProcess] = {}
        self._readers = Readers()
        self._flow = Flow()
        self._outputs: list[Set[str]] = []
        """The pipes to which each program writes that got SIGTERM and handles it."""
        self._launchers: set[Key] = set()
        self._past: set[Key] = set()
        """Processes that need no further handling: they were killed, have ended, or cannot be
        signalled by this user.
        """
        self._results: list[tuple[tuple[Key, ...], int]] = []
        self._draining: dict[Key, int] = {}
        self._drained_by = float("inf")

    @property
    def has_begun(self) -> bool:
        """Return whether the stop has begun."""
        return self._late_at is not None

    def begin(
        self,
        roots: Collection[int],
        grace_seconds: float,
        excluded_pids: Collection[int | None] = (),
    ) -> None:
        """Send SIGTERM to the programs below the root processes with the pids `roots`. The programs
        have `grace_seconds` to save and end.

        `excluded_pids` are the pids of children of this process that do not belong to the job.
        """
        self._late_at = time.monotonic() + grace_seconds / 2
        self._others = {*roots, *excluded_pids}
        self._orphans = kinds.orphan_pids(self._others, shells=True)
        self.advance(roots)

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a process that got a signal has
        ended.

        Call `advance` when it is readable.
        """
        return self._ends.fileno()

    @property
    def seconds_left(self) -> float:
        """Return the seconds until `advance` must be called again."""
        return max(0.0, self._next - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Return whether all processes that got a signal have ended, and the filters behind
        them have written all output.
        """
        if self._suspended or self._asked:
            return False
        return not self._draining or time.monotonic() >= self._drained_by

    def status_of(self, pid: int, status: int) -> int:
        """Return the wait status that counts for the child process `pid`, which ended with
        `status`.

        A runner that the stop itself has ended gets the wait status of its programs; any
        other process keeps `status`.
        """
        by_stop = pid in self.cut or status in _BY_SIGTERM
        return self._statuses.get(pid, status) if by_stop else status

    def advance(self, roots: Collection[int]) -> None:
        """Send SIGTERM to programs that were started since the last call, and end the runners
        that have no programs left.

        If the machine has no file descriptors left, the next call completes this.
        """
        self._next = time.monotonic() + OFTEN_SECONDS
        try:
            self._advance(roots)
        except OSError as error:
            log_line(f"cannot send SIGTERM to all programs of the job yet: {error}")
        else:
            told = any(asked.is_runner for asked in self._asked.values())
            if not self._launchers and not self._readers and not told:
                self._next += LOOK_SECONDS - OFTEN_SECONDS

    def _advance(self, roots: Collection[int]) -> None:
        self._record_ends()
        readers = [pid for pid, start in self._draining if (pid, start) in self._readers]
        begin = [(pid, self._launcher) for pid in roots]
        begin += [(pid, False) for pid in (*self._orphans, *readers)]
        found = ((read_process(pid), launcher) for pid, launcher in begin)
        self._walk([(process, (), launcher) for process, launcher in found if process is not None])
        self._release()
        if not self._suspended and not self._asked and not self._all_asked and self.has_begun:
            self._all_asked = True
            filters = self._record_filters(kinds.orphan_filters(self._others))
            self._orphans = kinds.orphan_pids(self._others, shells=False)
            self._advance(roots)
            self._drain_orphans(filters)
        elif not self._suspended and not self._asked:
            self._drained_by = min(self._drained_by, time.monotonic() + DRAIN_SECONDS)

    @property
    def _is_late(self) -> bool:
        return self._late_at is not None and time.monotonic() >= self._late_at

    def _record_ends(self) -> None:
        ready = {fd for fd, _ in self._ends.poll(0)}
        for key, asked in list(self._asked.items()):
            if asked.fd in ready:
                del self._asked[key]
                self._forget(key, asked.fd)
                status = zombie_status(*key)
                if status is None:  # another waiter was faster
                    status = 0 if asked.saves else int(signal.SIGTERM)
                self._results.append((asked.above, status))
        for key, fd in list(self._draining.items()):
            if fd in ready:
                del self._draining[key]
                self._readers.forget(key)
                self._forget(key, fd)

    def _forget(self, key: Key, fd: int) -> None:
        self._past.add(key)
        self._ends.unregister(fd)
        os.close(fd)

    def _walk(self, waiting: list[tuple[Process, tuple[Key, ...], bool]]) -> None:
        """Handle the processes in `waiting` and all their descendants. A runner is handled before
        the processes below it.
        """
        late: list[tuple[Process, tuple[Key, ...]]] = []
        while waiting or late:
            if not waiting:  # the programs are known, and so is who reads from them
                waiting += self._handle_reader(*late.pop())
                continue
            process, above, launcher = waiting.pop()
            key = (process.pid, process.start_ticks)
            if process.is_over or key in self._past:
                continue
            if key in self._suspended:
                waiting += self._below(self._suspended[key])
            elif key in self._asked:
                if self._asked[key].is_runner and self._is_late:
                    waiting += self._started_by(process, self._asked[key])
            elif children := self._of_launcher(process, key, launcher=launcher):
                waiting += [(child, above, False) for child in children]
            elif key in self._launchers or (key in self._draining and key not in self._readers):
                continue
            elif self._is_runner(process):
                if self._readers.hold_open(process):
                    late.append((process, above))
                else:
                    waiting += self._suspend(process, above)
            elif kinds.effect_of(process.pid) is TermEffect.DIES and keep_pipes_open.pipes_read(
                process.pid
            ):
                late.append((process, above))
            else:
                self._send_sigterm(process, above)

    def _record_filters(self, processes: list[Process]) -> list[Process]:
        """Record which of `processes` are filters. Return the list unchanged."""
        for process in filter(is_filter, processes):
            self._flow.add_filter(process)
        return processes

    def _handle_reader(
        self, process: Process, above: tuple[Key, ...]
    ) -> list[tuple[Process, tuple[Key, ...], bool]]:
        """Let a process that reads the output of programs continue, or stop it. Return the
        processes to handle next.

        If the reader were stopped or killed too early, the programs could not write their output.
        """
        if self._is_runner(process):
            if self._must_read_on(process):
                return []
            key = (process.pid, process.start_ticks)
            feeding = [(child, (*above, key), False) for child in self._readers.feeding(process)]
            if feeding:  # who of them writes decides
                self._walk(feeding)
                if self._must_read_on(process):
                    return []
            return self._suspend(process, above)
        saving = self._flow.of(self._outputs)
        if keep_pipes_open.pipes_read(process.pid).keys() & saving:
            self._flow.add_filter(process)
            self._drain(process)
        else:
            self._send_sigterm(process, above)
        return []

    def _started_by(
        self, process: Process, runner: _TerminatedProcess
    ) -> list[tuple[Process, tuple[Key, ...], bool]]:
        """Return the processes that `process`, a runner, has started since it handled SIGTERM.

        The runner may have become a program itself (`exec`).
        """
        children = children_of(process.pid)
        if kind_of(process, children) is ProcessKind.RUNNER:
            return [(child, runner.above, False) for child in kinds.not_filters(children)]
        key = (process.pid, process.start_ticks)
        self._ends.unregister(runner.fd)
        os.close(runner.fd)
        del self._asked[key]
        return [(process, runner.above, False)]

    def _of_launcher(self, process: Process, key: Key, *, launcher: bool) -> list[Process]:
        children = children_of(process.pid)
        if not launcher and not kinds.is_launcher(process, children):
            return []
        if children:
            self._launchers.add(key)
        return kinds.ranks_among(children)

    def _is_runner(self, process: Process) -> bool:
        key = (process.pid, process.start_ticks)
        if self._readers.is_replaced(process):
            self._readers.forget(key)
        is_reader = key in self._readers
        return is_reader or kind_of(process, children_of(process.pid)) is ProcessKind.RUNNER

    def _must_read_on(self, process: Process) -> bool:
        above = {key for each in self._asked.values() for key in each.above}
        runners = [runner for key, runner in self._suspended.items() if key in above]
        writing: list[_StoppedProcess] = [*runners]
        writing += self._asked.values()
        is_reader = self._readers.must_continue(
            process, self._flow.of(each.writes for each in writing)
        )
        if is_reader:
            self._flow.add_filter(process)
        return is_reader

    def _suspend(
        self, process: Process, above: tuple[Key, ...]
    ) -> list[tuple[Process, tuple[Key, ...], bool]]:
        """Send SIGSTOP to a runner. Return its child processes, to be handled next."""
        key = (process.pid, process.start_ticks)
        fd = open_process(process.pid, process.start_ticks)
        if fd is None:
            return []
        held = _SuspendedRunner(process, above, fd, keep_pipes_open.pipes_written(process.pid))
        try:
            send_signal(fd, signal.SIGSTOP)
        except PermissionError:  # of another user, as with sudo: processes below it may be ours
            os.close(fd)
            self._past.add(key)
            return [(child, above, False) for child in children_of(process.pid)]
        self._suspended[key] = held
        kinds.await_halt(process)
        children = children_of(process.pid)
        held.filters_count = bool(children) and not kinds.not_filters(children)
        return list(self._below(held))

    def _below(self, held: _SuspendedRunner) -> Iterator[tuple[Process, tuple[Key, ...], bool]]:
        above = (*held.above, (held.process.pid, held.process.start_ticks))
        children = self._record_filters(children_of(held.process.pid))
        for child in children if held.filters_count else kinds.not_filters(children):
            yield child, above, False

    def _send_sigterm(
        self, process: Process, above: tuple[Key, ...], *, is_runner: bool = False
    ) -> None:
        """Send SIGTERM to `process`, and SIGCONT if it was stopped.

        `is_runner` is True if it is a runner that handles SIGTERM.
        """
        key = (process.pid, process.start_ticks)
        writes = keep_pipes_open.pipes_written(process.pid)
        saves = kinds.effect_of(process.pid) is TermEffect.HANDLES
        fd = open_process(process.pid, process.start_ticks)
        if fd is None:
            return
        self._ends.register(fd, select.EPOLLIN)
        try:
            send_signal(fd, signal.SIGTERM)
            if is_runner or process.state == "T":
                send_signal(fd, signal.SIGCONT)
        except PermissionError:
            self._forget(key, fd)
            return
        self.reached.append(process.pid)
        if saves:
            self._outputs.append(writes)
        asked = self._asked[key] = _TerminatedProcess(process, above, fd, writes)
        asked.is_runner, asked.saves = is_runner, saves

    def _release(self) -> None:
        """End each stopped runner when all programs below it that got SIGTERM have ended."""
        for key, held in sorted(self._suspended.items(), key=lambda item: -len(item[1].above)):
            below: list[_StoppedProcess] = [*self._asked.values(), *self._suspended.values()]
            if any(key in each.above for each in below):
                continue
            del self._suspended[key]
            self._statuses[held.process.pid] = self._status_below(key)
            effect = kinds.effect_of(held.process.pid)
            if effect is TermEffect.HANDLES:
                self._send_sigterm(held.process, held.above, is_runner=True)
            else:
                self._kill(key, held, effect)
            self._readers.forget(key)
            os.close(held.fd)

    def _kill(self, key: Key, held: _SuspendedRunner, effect: TermEffect) -> None:
        """End a stopped runner with SIGTERM or SIGKILL, so that it never runs its next command."""
        for child in children_of(held.process.pid):
            self._let_drain(child)
        if (process := read_process(held.process.pid)) is not None and not process.is_over:
            self.cut.add(held.process.pid)
        by_term = (signal.SIGTERM, signal.SIGCONT)
        for number in by_term if effect is TermEffect.DIES else (signal.SIGKILL,):
            send_signal(held.fd, number)
        self._past.add(key)

    def _let_drain(self, process: Process) -> None:
        """Make the stop wait for the end of `process`, if it is a reader or a filter of a pipe."""
        key = (process.pid, process.start_ticks)
        if key in self._readers or (is_filter(process) and keep_pipes_open.pipes_read(process.pid)):
            self._drain(process)

    def _drain(self, process: Process) -> None:
        key = (process.pid, process.start_ticks)
        if key in self._draining:
            return
        if (fd := open_process(process.pid, process.start_ticks)) is not None:
            self._draining[key] = fd
            self._ends.register(fd, select.EPOLLIN)

    def _drain_orphans(self, filters: Collection[Process]) -> None:
        """Add the orphans among `filters` to the processes that must end before the stop is over,
        if they read the output of programs that save: `(train | cat > log &)`.
        """
        saving = self._flow.of(self._outputs)
        for process in filters:
            if keep_pipes_open.pipes_read(process.pid).keys() & saving:
                self._drain(process)

    def _status_below(self, key: Key) -> int:
        """Return the best wait status among the programs of a runner; the wait status of
        SIGTERM if it ran no program.
        """
        found = [status for above, status in self._results if key in above]
        return min(found, key=_badness, default=int(signal.SIGTERM))

    def close(self) -> None:
        """Forget all processes. No more signals are sent."""
        taken: list[_StoppedProcess] = [*self._suspended.values(), *self._asked.values()]
        for fd in (*(each.fd for each in taken), *self._draining.values()):
            os.close(fd)
        self._readers.close()
        self._ends.close()


def _badness(status: int) -> tuple[bool, bool]:
    return status not in _SAVED, os.WIFSIGNALED(status)
