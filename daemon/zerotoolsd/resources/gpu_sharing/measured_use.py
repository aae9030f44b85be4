"""The use of each GPU by our jobs, from the driver's lists of processes.

A process belongs to an attempt if it descends from the attempt's supervisor or keeper. If the
driver does not report a process's use, or reports unknown pids (as in a container), the use of that
GPU is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.plan import RUN
from zerotoolsd.supervisor.procfs import Process, boot_id, is_of_uid, read_process
from zerotoolsd.users.open_as_user import opened, owner_of

Owner = tuple[int, int]
"""(job, attempt)."""
Read = Callable[[int], Process | None]
_DEEPEST = 64


@dataclass(frozen=True)
class MeasuredUse:
    """Bytes by UUID: of each attempt, and of all of them together, for GPUs with known use."""

    of_attempts: Mapping[Owner, Mapping[str, int]] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)


def measure(
    gpus: Iterable[Gpu], attempts: Iterable[AttemptRow], read: Read = read_process
) -> MeasuredUse:
    """Return the current use of these attempts."""
    roots = {root: (a.job_id, a.number) for a in attempts for root in roots_of(a)}
    of_attempts: dict[Owner, dict[str, int]] = {}
    own: dict[str, int] = {}
    for gpu in gpus:
        if gpu.uuid is None or not gpu.processes:
            continue
        found = [(_owner(p.pid, roots, read), p.memory_used_bytes) for p in gpu.processes]
        if any(used is None or owner is None for owner, used in found):
            continue
        own[gpu.uuid] = 0
        for owner, used in found:
            if isinstance(owner, tuple):
                of_gpus = of_attempts.setdefault(owner, {})
                of_gpus[gpu.uuid] = of_gpus.get(gpu.uuid, 0) + (used or 0)
                own[gpu.uuid] += used or 0
    return MeasuredUse(of_attempts, own)


def _owner(pid: int, roots: Mapping[tuple[int, int], Owner], read: Read) -> Owner | bool | None:
    """Return the owner of the process; False: not ours; None: the process does not exist."""
    process = read(pid)
    if process is None:
        return None
    for _ in range(_DEEPEST):
        if (process.pid, process.start_ticks) in roots:
            return roots[process.pid, process.start_ticks]
        parent = read(process.parent) if process.parent > 1 else None
        if parent is None:
            return False
        process = parent
    return False


def roots_of(attempt: AttemptRow) -> list[tuple[int, int]]:
    """Return supervisor and keeper, by pid and start.

    For another user's attempt, only processes of that user count, whatever the record contains.
    """
    run_dir = Path(attempt.run_dir)
    try:
        with opened(run_dir) as base:
            run = read_json(base / RUN, LARGEST_RECORD) or {}
    except (OSError, ValueError):
        return []
    uid = owner_of(run_dir)
    if run.get("token") != attempt.token or run.get("boot_id") != boot_id():
        return []
    found = []
    for tree in (run, run.get("keeper")):
        named = tree if isinstance(tree, Mapping) else {}
        pid, start = named.get("pid"), named.get("start_ticks")
        if type(pid) is int and type(start) is int and (uid is None or is_of_uid(pid, uid)):
            found.append((pid, start))
    return found
