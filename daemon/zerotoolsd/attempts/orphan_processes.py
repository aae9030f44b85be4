"""Finds and kills the processes of an attempt after its supervisor and keeper have ended.

A program may clear its environment, change its name, fork twice and make a new session, so no
single property finds all its processes. Each of the following proves that a process belongs to the
attempt:

    run.json             the supervisor and its keeper, by pid and start
    the process file     the list of the supervisor's descendants (`exit_record/process_ledgers`)
    the control group    its group, which no process can leave (`supervisor/attempt_cgroup`)
    the environment      it contains the token of the attempt
    the systemd unit     the unit of the attempt, if systemd started the supervisor
    descent              the parent belongs to the attempt

Two kinds of processes never belong to the attempt: processes that are older than the keeper, and
this daemon with its ancestors.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotoolsd.attempts.backends.start_transient_unit import is_in_unit
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup, find_group, read_group
from zerotoolsd.supervisor.attempt_plan import RUN
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.exit_record import process_ledgers
from zerotoolsd.supervisor.exit_record.process_ledgers import (
    FAMILY,
    RecordedProcesses,
    read_process_tree,
)
from zerotoolsd.supervisor.procfs import (
    Process,
    all_processes,
    await_program,
    boot_id,
    descendants,
    read_process,
)
from zerotoolsd.supervisor.signal_process import is_of_uid, kill_process, signal_process
from zerotoolsd.supervisor.stop.kill_descendants import MOST_NAMED, left_behind
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of

MAX_LOOKS = 20


@dataclass(frozen=True)
class Traces:
    """The data that identify the processes of an attempt."""

    token: str
    roots: frozenset[tuple[int, int]] = frozenset()
    ranks: Mapping[int, int] = field(default_factory=dict)
    """The number of each rank, by pid of the rank."""
    noted: RecordedProcesses = field(default_factory=RecordedProcesses)
    group: AttemptGroup | None = None
    uid: int | None = None
    """The uid of all processes of the attempt; None if they belong to the user of the daemon."""

    @property
    def oldest(self) -> int:
        """Return the earliest time at which a process of the attempt can have started, in clock
        ticks since the boot.
        """
        return min((start for _, start in self.roots), default=0)

    def is_of_attempt(self, process: Process, members: Collection[int]) -> bool:
        """Return whether the data proves that `process` itself belongs to the attempt, without
        regard to its parents.

        `members` are the pids in the control group of the attempt.
        """
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
        """Return whether the process belongs to the user of the job. Records that this user can
        write prove nothing about processes of other users.
        """
        return self.uid is None or is_of_uid(process.pid, self.uid)


def traces_of(run_dir: Path, token: str) -> Traces:
    """Return the data that identify the processes of the attempt in `run_dir`.

    If the attempt's record cannot be read or is from an earlier boot, the data contains only the
    token.
    """
    uid = owner_of(run_dir)
    try:
        with opened_run_directory(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
            noted = read_process_tree(base / FAMILY, not_sessions=(os.getsid(0),))
    except (OSError, ValueError):
        run, noted = {}, RecordedProcesses()
    if run.get("token") != token or run.get("boot_id") != boot_id():
        return Traces(token, group=None if uid is None else find_group(token), uid=uid)
    roots = frozenset(filter(None, map(process_identity, (run, run.get("keeper")))))
    group = find_group(token) if uid is not None else None
    group = group or read_group(run.get("cgroup"), token)
    return Traces(token, roots, _ranks(run), noted if roots else RecordedProcesses(), group, uid)


def has_group_of_root(run_dir: Path) -> bool:
    """Return whether the attempt has a control group that only root can remove."""
    return owner_of(run_dir) is not None


def remove_group(token: str) -> None:
    """Remove the control group that the user root created for the ended attempt with this token."""
    group = find_group(token)
    if group is not None:
        group.remove(0)


def process_identity(tree: object) -> tuple[int, int] | None:
    """Return (pid, start time in clock ticks) of the process that `tree`, an entry of a record,
    describes. Return None if the entry is invalid.
    """
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


def find_attempt_processes(
    traces: Traces, look: Callable[[], dict[int, Process]] = all_processes
) -> list[Process]:
    """Return the living processes of the attempt. Raises OSError.

    `look` returns all processes by pid.
    """
    table = look()
    for pid in _own_line(table):
        table.pop(pid, None)
    # Read after the table: a pid that was reused meanwhile has another start time there.
    members = frozenset(traces.group.pids() if traces.group else ())
    proved = [p for p in table.values() if not p.is_over and traces.is_of_attempt(p, members)]
    below = [child for process in proved for child in descendants(process.pid, table)]
    ours = (p for p in (*proved, *below) if not p.is_over and traces.may_be(p))
    return list({p.pid: p for p in ours}.values())


def _own_line(table: Mapping[int, Process]) -> Collection[int]:
    """Return the pids of this process and its ancestors."""
    line, pid = {0, 1}, os.getpid()
    while pid not in line:
        line.add(pid)
        pid = table[pid].parent if pid in table else 0
    return line


@dataclass
class OrphanKiller:
    """Kills an attempt's remaining processes. Repeat `kill_remaining` while it returns True."""

    traces: Traces
    kill: Callable[[Process, int | None], object] = kill_process
    """A function that kills a process, if the process still has the given uid."""
    find: Callable[[Traces], list[Process]] = find_attempt_processes
    found: set[tuple[int, int]] = field(default_factory=set)
    """All processes of the attempt that were found so far, by pid and start time."""
    refused: set[int] = field(default_factory=set)
    alive: list[Process] = field(default_factory=list)

    def kill_remaining(self) -> bool:
        """Send SIGKILL to the remaining processes of the attempt. Return whether there were any.
        Raises OSError.
        """
        # Search first, so that processes that end with the group are counted, too.
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
        """Return the records of the processes that the last `kill_remaining` found alive."""
        ranks = self.traces.ranks
        return [
            left_behind(p, rank=ranks.get(p.pid), refused=p.pid in self.refused)
            for p in self.alive[:MOST_NAMED]
        ]

    def forget(self, run_dir: Path) -> None:
        """Remove the files in `run_dir` by which processes of the attempt are recognised. Call this
        after the last process has ended; a second call does nothing.
        """
        with suppress(OSError), opened_run_directory(run_dir) as base:
            process_ledgers.remove_process_tree(base)
        if self.traces.group is not None:
            self.traces.group.remove(0)


def kill_orphans(traces: Traces) -> list[Process]:
    """Send SIGKILL to every process of the attempt, and return these processes without waiting for
    their ends. Search until no new process is found, because the processes may fork meanwhile.
    """
    sweep, seen = OrphanKiller(traces), dict[tuple[int, int], Process]()
    for _ in range(MAX_LOOKS):
        before = len(seen)
        sweep.kill_remaining()
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


LARGEST_KEPT = 256 * 1024
"""Largest size of a record that is stored, in bytes of JSON."""


def check_user_record(run_dir: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `record` with only the valid entries in `unkillable`, the list of processes that
    survived SIGKILL.

    An entry is valid if it names a process of the owner of `run_dir` that also survives the SIGKILL
    which this function sends. If the record is larger than LARGEST_KEPT, its largest values are
    removed, because it is stored in the queue of all users.
    """
    uid = owner_of(run_dir)
    if uid is None:
        return record
    record = _bounded(record)
    lines = record.get("unkillable")
    if not lines:
        return record
    left = [line for line in lines[:MOST_NAMED] if _is_left(line, uid)]
    return {**record, "unkillable": left}


def _bounded(record: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes = {key: len(key) + len(json.dumps(value)) for key, value in record.items()}
    left = sum(sizes.values())
    dropped = set()
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if left <= LARGEST_KEPT:
            break
        dropped.add(key)
        left -= sizes[key]
    return {key: value for key, value in record.items() if key not in dropped}


def _is_left(line: Mapping[str, Any], uid: int) -> bool:
    pid, start = line["pid"], line["start_ticks"]
    if line.get("boot_id") != boot_id() or not is_of_uid(pid, uid):
        return False
    with suppress(PermissionError):
        if not signal_process(pid, start, signal.SIGKILL, uid=uid):
            return False
    found = read_process(pid)
    return found is not None and found.start_ticks == start and not found.is_over
