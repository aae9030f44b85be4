"""Finds runners that read the output of programs. Such runners must continue during a stop.

A runner is a process that starts programs. Examples are `x=$(train)`, a loop that adds time stamps
to lines, and a Python program that copies the output of another. If such a runner were stopped, the
programs could not write. The stop keeps the write ends of their pipes open, so that no runner sees
the end of the output. A runner can be stopped without loss when it has read all output. All methods
raise OSError if the machine has no file descriptors left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence, Set

from zerotoolsd.supervisor.procfs import Process, children_of, read_process
from zerotoolsd.supervisor.stop import keep_pipes_open
from zerotoolsd.supervisor.stop import process_kinds as kinds

DRAIN_SECONDS = 5.0
"""Seconds that filters and readers have, after the programs have ended, to read the remaining
output of the programs.
"""
_SHORT_SECONDS = 1.0
"""Commands that a shell starts for the lines of a program's output are assumed to run for less
than this many seconds.
"""

Key = tuple[int, int]
"""Identity of a process: (pid, start time in clock ticks)."""


class Flow:
    """The pipes through which the output of some programs flows, also behind filters (`tee`)."""

    def __init__(self) -> None:
        self._passing: dict[Key, tuple[Set[str], Set[str]]] = {}

    def add_filter(self, process: Process) -> None:
        """Record that `process` is a filter, which passes data from pipes into other pipes."""
        key = (process.pid, process.start_ticks)
        if key not in self._passing:
            self._passing[key] = (
                keep_pipes_open.pipes_read(process.pid).keys(),
                keep_pipes_open.pipes_written(process.pid),
            )

    def of(self, written: Iterable[Set[str]]) -> Set[str]:
        """Return the pipes in `written` and all pipes into which filters pass the same data."""
        found = set().union(*written)
        size = -1
        while size != len(found):
            size = len(found)
            found.update(*(after for before, after in self._passing.values() if before & found))
        return found


class Readers:
    """The runners that read from pipes. Keeps their pipes open until they have read all data."""

    def __init__(self) -> None:
        self._kept: dict[Key, dict[str, int | None]] = {}
        self._fed_at: dict[Key, float] = {}
        self._shells: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._fed_at

    def __bool__(self) -> bool:
        return bool(self._fed_at)

    def hold_open(self, process: Process) -> Set[str]:
        """Return the names of the pipes that `process` reads, and keep the write end of each
        open in this process.
        """
        key = (process.pid, process.start_ticks)
        kept = self._kept.get(key, {})
        if key in self._fed_at and kinds.is_named_runner(process):
            return kept.keys()  # the new pipe is of a $(date)
        if kinds.is_named_runner(process):
            self._shells.add(key)
        for pipe, number in keep_pipes_open.pipes_read(process.pid).items():
            if pipe not in kept:
                kept[pipe] = keep_pipes_open.keep_open(process.pid, number)
                self._kept[key] = kept
        return kept.keys()

    def is_replaced(self, process: Process) -> bool:
        """Return whether `process` was a shell that has executed another program in its place. That
        program reads on until its pipe ends, and then writes what it has buffered.
        """
        is_shell = (process.pid, process.start_ticks) in self._shells
        return is_shell and not kinds.is_named_runner(process)

    def feeding(self, process: Process) -> list[Process]:
        """Return the child processes of `process` that write into a pipe which `process` reads.

        These children are asked to stop first; afterwards `must_continue` decides about `process`.
        If `process` is not a shell, all children are returned, because such a program does
        not start a command for each line.
        """
        children = kinds.not_filters(children_of(process.pid))
        if not kinds.is_named_runner(process):
            return children
        read = self._kept.get((process.pid, process.start_ticks), {}).keys()
        return [child for child in children if keep_pipes_open.pipes_written(child.pid) & read]

    def must_continue(self, process: Process, flow: Set[str]) -> bool:
        """Return whether `process` must continue: it does nothing but read from a pipe in `flow`,
        or it has not read all data.

        A shell may run short commands for each line that it reads.
        """
        key = (process.pid, process.start_ticks)
        kept = self._kept.get(key, {})
        is_fed, now = bool(kept.keys() & flow), time.monotonic()
        if is_fed:  # others end by themselves, such as that of $(date)
            self._let_end(key, kept.keys() - flow)
        waits = kinds.Wait(process.pid)
        children = children_of(process.pid)
        does_more = waits.lasts
        if kinds.is_named_runner(process):
            # A shell that waits for the program does not read from it (`coproc`).
            only_feeding = only_feed(children, kept.keys())
            does_more = (does_more and only_feeding) or self._runs_other_commands(
                process, children, kept.keys(), is_fed=is_fed
            )
        if is_fed and not does_more:
            self._fed_at[key] = now
            return True
        fed_at = self._fed_at.get(key)
        if fed_at is not None and not is_fed and not does_more and now < fed_at + DRAIN_SECONDS:
            state = read_process(process.pid)
            is_busy = bool(children) or state is None or state.state != "S"
            if is_busy or not all(
                fd is None or keep_pipes_open.is_empty(fd) for fd in kept.values()
            ):
                return True
        self._fed_at.pop(key, None)
        return False

    @staticmethod
    def _runs_other_commands(
        shell: Process, children: Sequence[Process], read: Set[str], *, is_fed: bool
    ) -> bool:
        """Return whether `shell` runs commands that do not write into the input of the shell.

        `read` are the pipes that the shell reads. With `is_fed`, programs still write into
        them; then commands that run for less than `_SHORT_SECONDS` do not count.
        """
        commands = [
            child
            for child in kinds.not_filters(children)
            if not keep_pipes_open.pipes_written(child.pid) & read
            and kinds.is_command(child, shell, children)
        ]
        return any(not is_fed or kinds.process_age(child) >= _SHORT_SECONDS for child in commands)

    def _let_end(self, key: Key, ended: Set[str]) -> None:
        for pipe in ended:
            fd = self._kept[key].pop(pipe)
            if fd is not None:
                os.close(fd)

    def forget(self, key: Key) -> None:
        """Close the pipes of the runner with the identity `key` in this process, so that the
        runner sees the end of its input.
        """
        self._fed_at.pop(key, None)
        self._shells.discard(key)
        self._let_end(key, {*self._kept.get(key, {})})
        self._kept.pop(key, None)

    def close(self) -> None:
        """Close all pipes that this object keeps open."""
        for key in list(self._kept):
            self.forget(key)


def only_feed(children: Sequence[Process], read: Set[str]) -> bool:
    """Return whether there are `children`, and each of them writes into a pipe in `read`.

    A shell can wait for a child that has just ended. It then has no children, and reads next.
    """
    return bool(children) and all(
        keep_pipes_open.pipes_written(child.pid) & read for child in children
    )
