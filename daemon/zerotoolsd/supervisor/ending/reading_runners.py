"""Runners that read what programs write, and so run on during a stop: `x=$(train)`, a loop that
stamps lines, a Python program that copies the output of another.

Where one stood still, the programs could not write any more. Each is kept from the end of its
pipes; once it has read all of them, it can be stopped without a loss. Methods raise OSError where
the machine has no descriptors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence, Set

from zerotoolsd.supervisor.ending import pipes
from zerotoolsd.supervisor.ending import process_kinds as kinds
from zerotoolsd.supervisor.procfs import Process, children_of, read_process

DRAIN_SECONDS = 5.0
"""How long filters and readers may still take what the programs have left them."""
_SHORT_SECONDS = 1.0
"""A shell that reads a program's output starts nothing that lives longer."""

Key = tuple[int, int]
"""(pid, start ticks)."""


class Flow:
    """The pipes that the output of some programs goes through, by way of filters."""

    def __init__(self) -> None:
        self._passing: dict[Key, tuple[Set[str], Set[str]]] = {}

    def passes(self, process: Process) -> None:
        """Note that `process` writes what it reads."""
        key = (process.pid, process.start_ticks)
        if key not in self._passing:
            self._passing[key] = (pipes.read(process.pid).keys(), pipes.written(process.pid))

    def of(self, written: Iterable[Set[str]]) -> Set[str]:
        """The pipes that are reached from those `written`, and these."""
        found = set().union(*written)
        size = -1
        while size != len(found):
            size = len(found)
            found.update(*(after for before, after in self._passing.values() if before & found))
        return found


class Readers:
    """The pipes that runners read, kept from their ends, and which of the runners run on."""

    def __init__(self) -> None:
        self._kept: dict[Key, dict[str, int | None]] = {}
        self._fed_at: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._fed_at

    def __bool__(self) -> bool:
        return bool(self._fed_at)

    def keep(self, process: Process) -> Set[str]:
        """The pipes that `process` reads, none of which ends from now on."""
        key = (process.pid, process.start_ticks)
        kept = self._kept.get(key, {})
        if key in self._fed_at and kinds.is_named_runner(process):
            return kept.keys()  # what is new is of a $(date)
        for pipe, number in pipes.read(process.pid).items():
            if pipe not in kept:
                kept[pipe] = pipes.keep_open(process.pid, number)
                self._kept[key] = kept
        return kept.keys()

    def feeding(self, process: Process) -> list[Process]:
        """The children of `process` that write into what it reads: they are asked before it is
        known whether it runs on. All, where it is no shell: these run nothing for each line."""
        children = kinds.not_filters(children_of(process.pid))
        if not kinds.is_named_runner(process):
            return children
        read = self._kept.get((process.pid, process.start_ticks), {}).keys()
        return [child for child in children if pipes.written(child.pid) & read]

    def runs_on(self, process: Process, flow: Set[str]) -> bool:
        """Whether `process` reads from the `flow`, or has not yet read what was left of it, and
        does nothing else: a shell may run short commands for each line."""
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
            only_feeding = all(pipes.written(child.pid) & kept.keys() for child in children)
            does_more = (does_more and only_feeding) or self._runs_more(
                process, children, kept.keys(), is_fed=is_fed
            )
        if is_fed and not does_more:
            self._fed_at[key] = now
            return True
        fed_at = self._fed_at.get(key)
        if fed_at is not None and not is_fed and not does_more and now < fed_at + DRAIN_SECONDS:
            state = read_process(process.pid)
            is_busy = bool(children) or state is None or state.state != "S"
            if is_busy or not all(fd is None or pipes.is_empty(fd) for fd in kept.values()):
                return True
        self._fed_at.pop(key, None)
        return False

    @staticmethod
    def _runs_more(
        shell: Process, children: Sequence[Process], read: Set[str], *, is_fed: bool
    ) -> bool:
        """Whether `shell` runs programs for their own sake. Once nothing is written into what it
        reads, short ones count, too."""
        commands = [
            child
            for child in kinds.not_filters(children)
            if not pipes.written(child.pid) & read and kinds.is_command(child, shell, children)
        ]
        return any(not is_fed or kinds.age(child) >= _SHORT_SECONDS for child in commands)

    def _let_end(self, key: Key, ended: Set[str]) -> None:
        for pipe in ended:
            fd = self._kept[key].pop(pipe)
            if fd is not None:
                os.close(fd)

    def forget(self, key: Key) -> None:
        """Let the pipes end that the runner `key` reads."""
        self._fed_at.pop(key, None)
        self._let_end(key, {*self._kept.get(key, {})})
        self._kept.pop(key, None)

    def close(self) -> None:
        """Let all pipes end."""
        for key in list(self._kept):
            self.forget(key)
