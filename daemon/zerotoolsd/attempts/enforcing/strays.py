"""What still runs of an attempt whose supervisor and keeper are both gone, and how it is ended.

Nothing that a program says of itself decides alone: it may empty its environment, change its name,
fork twice and make a session of its own. What proves that a process is of the attempt:

    run.json             the supervisor and its keeper, by pid and start
    the family           what the supervisor noted of its descendants (`supervisor/family`)
    the control group    in which a process stays, whatever it does (`supervisor/cgroups`)
    the environment      the attempt's token
    the cgroup           that of the attempt's unit, where systemd started it
    descent              a child of any of these

A process that is older than the attempt's keeper is never of it, nor is this daemon, nor what it
descends from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotoolsd.accounts.rights import opened, owner_of
from zerotoolsd.attempts.spawning.transient_unit import is_in_unit
from zerotoolsd.supervisor.cgroups.group import AttemptGroup, find_group, read_group
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.ending import family
from zerotoolsd.supervisor.ending.family import FAMILY, Noted, read_note
from zerotoolsd.supervisor.ending.left_behind import MOST_NAMED, left_behind
from zerotoolsd.supervisor.plan import RUN
from zerotoolsd.supervisor.procfs import (
    Process,
    await_program,
    boot_id,
    descendants,
    is_of_uid,
    kill_process,
    processes,
)

MAX_LOOKS = 20


@dataclass(frozen=True)
class Traces:
    """What an attempt left that tells its processes from all others."""

    token: str
    roots: frozenset[tuple[int, int]] = frozenset()
    ranks: Mapping[int, int] = field(default_factory=dict)
    """The number of each rank, by pid."""
    noted: Noted = field(default_factory=Noted)
    group: AttemptGroup | None = None
    uid: int | None = None
    """Whose processes they all are, where those are not the daemon's."""

    @property
    def oldest(self) -> int:
        """No process of the attempt began before, in ticks since boot."""
        return min((start for _, start in self.roots), default=0)

    def is_of_attempt(self, process: Process, members: Collection[int]) -> bool:
        """Whether that is proved of the process itself. `members` are the pids in its group."""
        if process.start_ticks < self.oldest or not self.may_be(process):
            return False
        if process.pid in members:
            return True
        if (process.pid, process.start_ticks) in self.roots or self.noted.proves(process):
            return True
        if f"ZEROTOOLS_TOKEN={self.token}".encode() in _environment(process):
            return True
        return is_in_unit(_cgroups(process.pid), self.token)

    def may_be(self, process: Process) -> bool:
        """Whether the process is of the job's user: no record of theirs makes it one of others."""
        return self.uid is None or is_of_uid(process.pid, self.uid)


def traces_of(run_dir: Path, token: str) -> Traces:
    """What the attempt in `run_dir` left; its token alone, where that cannot be read or is not of
    this boot."""
    uid = owner_of(run_dir)
    try:
        with opened(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
            noted = read_note(base / FAMILY, not_sessions=(os.getsid(0),))
    except (OSError, ValueError):
        run, noted = {}, Noted()
    if run.get("token") != token or run.get("boot_id") != boot_id():
        return Traces(token, group=None if uid is None else find_group(token), uid=uid)
    roots = frozenset(filter(None, map(identity, (run, run.get("keeper")))))
    group = find_group(token) if uid is not None else None
    group = group or read_group(run.get("cgroup"), token)
    return Traces(token, roots, _ranks(run), noted if roots else Noted(), group, uid)


def has_group_of_root(run_dir: Path) -> bool:
    """Whether the attempt's control group, if it has one, is root's to remove."""
    return owner_of(run_dir) is not None


def remove_group(token: str) -> None:
    """Remove the control group that root made for an attempt which is over."""
    group = find_group(token)
    if group is not None:
        group.remove(0)


def identity(tree: object) -> tuple[int, int] | None:
    """(pid, start) of a process as records name it."""
    found = tree if isinstance(tree, Mapping) else {}
    pid, start = found.get("pid"), found.get("start_ticks")
    return (pid, start) if type(pid) is int and type(start) is int else None


def _ranks(run: Mapping[str, Any]) -> dict[int, int]:
    ranks = run.get("ranks")
    found = {}
    for line in ranks if isinstance(ranks, list) else ():
        if isinstance(line, Mapping) and type(line.get("pid")) is int:
            found[line["pid"]] = line.get("rank")
    return {pid: rank for pid, rank in found.items() if type(rank) is int}


def find(traces: Traces, look: Callable[[], dict[int, Process]] = processes) -> list[Process]:
    """The processes of the attempt that are not over. Raises OSError."""
    table = look()
    for pid in _own_line(table):
        table.pop(pid, None)
    # Later than the table: a pid that was given to another meanwhile has another start there.
    members = frozenset(traces.group.pids() if traces.group else ())
    proved = [p for p in table.values() if not p.is_over and traces.is_of_attempt(p, members)]
    below = [child for process in proved for child in descendants(process.pid, table)]
    ours = (p for p in (*proved, *below) if not p.is_over and traces.may_be(p))
    return list({p.pid: p for p in ours}.values())


def _own_line(table: Mapping[int, Process]) -> Collection[int]:
    """This process and those that it descends from."""
    line, pid = {0, 1}, os.getpid()
    while pid not in line:
        line.add(pid)
        pid = table[pid].parent if pid in table else 0
    return line


@dataclass
class Sweep:
    """Ending what is left of one attempt: `look` again until nothing is."""

    traces: Traces
    kill: Callable[[Process, int | None], object] = kill_process
    """Of a process and of whose it must be still: it may have become somebody else's."""
    find: Callable[[Traces], list[Process]] = find
    found: set[tuple[int, int]] = field(default_factory=set)
    """Everything that was found so far, by pid and start."""
    refused: set[int] = field(default_factory=set)
    alive: list[Process] = field(default_factory=list)

    def look(self) -> bool:
        """SIGKILL what is found; whether anything was. Raises OSError."""
        # First, so that what the group ends at once is counted, too.
        self.alive, self.refused = self.find(self.traces), set()
        if self.traces.group is not None:
            self.traces.group.kill()
        for process in self.alive:
            self.found.add((process.pid, process.start_ticks))
            try:
                self.kill(process, self.traces.uid)
            except PermissionError:
                self.refused.add(process.pid)
        return bool(self.alive)

    def left_behind(self) -> list[dict[str, Any]]:
        """The lines of what lived at the last look."""
        ranks = self.traces.ranks
        return [
            left_behind(p, rank=ranks.get(p.pid), refused=p.pid in self.refused)
            for p in self.alive[:MOST_NAMED]
        ]

    def forget(self, run_dir: Path) -> None:
        """Nothing is left: remove what was kept to find it. May be repeated."""
        with suppress(OSError), opened(run_dir) as base:
            family.forget(base)
        if self.traces.group is not None:
            self.traces.group.remove(0)


def kill_strays(traces: Traces) -> list[Process]:
    """SIGKILL every process of the attempt, without waiting for their ends.

    Looks again until there is none that it has not seen, since they may fork meanwhile.
    """
    sweep, seen = Sweep(traces), dict[tuple[int, int], Process]()
    for _ in range(MAX_LOOKS):
        before = len(seen)
        sweep.look()
        seen |= {(p.pid, p.start_ticks): p for p in sweep.alive}
        if len(seen) == before:
            break
    return list(seen.values())


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _environment(process: Process) -> list[bytes]:
    file = Path(f"/proc/{process.pid}/environ")
    try:
        found = file.read_bytes()
        if not found:  # none, or a program that is only being started
            await_program(process)
            found = file.read_bytes()
    except OSError:
        return []
    return found.split(b"\0")
