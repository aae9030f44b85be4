from __future__ import annotations

from zerotoolsd.children.pid_watcher.watched_tree import WatchedTree
from zerotoolsd.supervisor.procfs import Process


def process(pid: int, parent: int, start: int = 1, state: str = "S") -> Process:
    return Process(pid=pid, parent=parent, state=state, start_ticks=start, rss_bytes=0)


class Machine:
    """Processes, by pid."""

    def __init__(self, *there: Process) -> None:
        self.there = {each.pid: each for each in there}

    def __call__(self) -> dict[int, Process]:
        return dict(self.there)


def test_what_runs_below_it_belongs_to_it_and_nothing_else() -> None:
    machine = Machine(process(5, 1), process(6, 5), process(7, 6), process(8, 1))
    assert {each.pid for each in WatchedTree(5, 1, machine).look()} == {5, 6, 7}


def test_what_it_leaves_behind_still_does() -> None:
    machine = Machine(process(5, 1), process(6, 5))
    tree = WatchedTree(5, 1, machine)
    tree.look()
    machine.there = {6: process(6, 1), 9: process(9, 6)}
    assert {each.pid for each in tree.look()} == {6, 9}
    machine.there = {9: process(9, 1)}
    assert [each.pid for each in tree.look()] == [9]


def test_one_that_took_over_a_pid_does_not() -> None:
    machine = Machine(process(5, 1), process(6, 5))
    tree = WatchedTree(5, 1, machine)
    tree.look()
    machine.there = {5: process(5, 1, start=9), 6: process(6, 1, start=9), 7: process(7, 6)}
    assert tree.look() == []


def test_what_has_ended_is_not_there() -> None:
    machine = Machine(process(5, 1, state="Z"), process(6, 5))
    assert [each.pid for each in WatchedTree(5, 1, machine).look()] == [6]
