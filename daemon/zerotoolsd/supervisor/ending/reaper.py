"""Ending every descendant, also those that forked twice and made sessions of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotoolsd.supervisor.cgroups.group import AttemptGroup
from zerotoolsd.supervisor.ending.left_behind import MOST_NAMED, left_behind
from zerotoolsd.supervisor.logs import say
from zerotoolsd.supervisor.procfs import (
    Process,
    descendants,
    kill_process,
    processes,
    read_process,
)

NoteEnd = Callable[[int, int], None]
"""(pid, wait status): called while the kernel still knows it."""
_DUMPED = 0x80


def reap(note: NoteEnd = lambda pid, status: None) -> dict[int, int]:
    """Wait statuses, by pid, of all children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended
        if found is None:
            return ended
        status = _wait_status(found)
        note(found.si_pid, status)
        os.waitpid(found.si_pid, 0)
        ended[found.si_pid] = status


def _wait_status(found: os.waitid_result) -> int:
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (_DUMPED if found.si_code == os.CLD_DUMPED else 0)


def alive_below(pid: int) -> list[Process]:
    """Descendants of `pid` that are not over."""
    return [p for p in descendants(pid, processes()) if not p.is_over]


@dataclass
class Killed:
    """What `kill_all` came to."""

    statuses: dict[int, int] = field(default_factory=dict)
    """Wait statuses of those that were children, by pid."""
    stuck: list[Process] = field(default_factory=list)
    """What still lives."""
    refused: set[int] = field(default_factory=set)
    """Pids of those that are not ours to end."""

    def left_behind(self, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
        """The lines of the processes that still live; `ranks`: the number of each rank, by pid."""
        return [
            left_behind(p, rank=ranks.get(p.pid), refused=p.pid in self.refused)
            for p in self.stuck[:MOST_NAMED]
        ]


def kill_all(
    deadline_seconds: float,
    spare: Collection[int] = (),
    note: NoteEnd = lambda pid, status: None,
    *,
    kill: Callable[[Process], object] = kill_process,
    group: AttemptGroup | None = None,
) -> Killed:
    """SIGKILL all descendants but `spare`, and all of the `group`, again and again, since they may
    fork meanwhile.

    What the kernel did not end within the deadline is left behind. While the machine does not let
    it look (no descriptors), it tries again.
    """
    done = Killed()
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while True:
        try:
            if group is not None:
                group.kill()
            alive = [process for process in _alive(group) if process.pid not in spare]
            done.refused = _kill_each(alive, kill)
        except OSError as error:
            say(f"cannot look for processes that are left: {error}")
            alive, deadline = [], time.monotonic() + deadline_seconds
            looked = False
        else:
            looked = True
        done.statuses |= reap(note)
        if looked and (not alive or time.monotonic() > deadline):
            done.stuck = alive
            return done
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _alive(group: AttemptGroup | None) -> list[Process]:
    found = alive_below(os.getpid())
    known = {os.getpid(), *(process.pid for process in found)}
    others = (read_process(pid) for pid in (group.pids() if group else ()) if pid not in known)
    return found + [process for process in others if process is not None and not process.is_over]


def _kill_each(alive: Iterable[Process], kill: Callable[[Process], object]) -> set[int]:
    """The pids of those that are not ours to end. Raises OSError."""
    refused = set()
    for process in alive:
        try:
            kill(process)
        except PermissionError:
            refused.add(process.pid)
    return refused
