"""The host memory of each attempt, by one scan of /proc for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.resources.gpu_sharing.measured_use import Owner, roots_of
from zerotoolsd.supervisor.procfs import Process, descendants, processes

ReadAll = Callable[[], Mapping[int, Process]]


def host_memory(attempts: Iterable[AttemptRow], read: ReadAll = processes) -> dict[Owner, int]:
    """Return the resident bytes of all descendants of each attempt's supervisor or keeper.

    Shared pages count once per process, as in the supervisor's reports.
    """
    roots = {(a.job_id, a.number): roots_of(a) for a in attempts}
    if not any(roots.values()):
        return {}
    table = read()
    found = {}
    for owner, those in roots.items():
        ours: dict[int, int] = {}
        for pid, start_ticks in those:
            root = table.get(pid)
            if root is not None and root.start_ticks == start_ticks:
                ours |= {each.pid: each.rss_bytes for each in descendants(pid, table)}
        supervisors = {pid for pid, _ in those}
        held = sum(size for pid, size in ours.items() if pid not in supervisors)
        if ours:
            found[owner] = held
    return found
