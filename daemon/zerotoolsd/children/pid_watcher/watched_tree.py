"""The processes at and below a process that a user started by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from zerotoolsd.supervisor.procfs import Process, descendants, kill_process, processes


class WatchedTree:
    """The process (`pid`, `start_ticks`), and all processes ever seen below it: remaining ones may
    have another parent later."""

    def __init__(
        self,
        pid: int,
        start_ticks: int,
        table: Callable[[], Mapping[int, Process]] = processes,
    ) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._table = table
        self._known: dict[tuple[int, int], Process] = {}

    def look(self) -> list[Process]:
        """Return all of these processes still running."""
        table = self._table()
        root = table.get(self._pid)
        found = {_key(each): each for each in self._live(table)}
        roots = [*found.values()]
        if root is not None and root.start_ticks == self._start_ticks:
            roots.append(root)
        for each in roots:
            for process in (each, *descendants(each.pid, table)):
                found[_key(process)] = process
        self._known = {key: each for key, each in found.items() if not each.is_over}
        return list(self._known.values())

    def _live(self, table: Mapping[int, Process]) -> Iterable[Process]:
        for pid, start in self._known:
            process = table.get(pid)
            if process is not None and process.start_ticks == start and not process.is_over:
                yield process

    def kill(self) -> list[Process]:
        """Send SIGKILL to all of them; return the processes. Raises PermissionError."""
        there = self.look()
        for process in there:
            kill_process(process)
        return there


def _key(process: Process) -> tuple[int, int]:
    return process.pid, process.start_ticks
