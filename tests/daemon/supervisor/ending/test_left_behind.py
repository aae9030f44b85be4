"""How a process that could not be ended is told of."""

from __future__ import annotations

import os
from typing import Any

import pytest

from zerotoolsd.supervisor.ending.left_behind import in_words, is_still_alive, left_behind
from zerotoolsd.supervisor.procfs import Process, read_process

LINE: dict[str, Any] = {"pid": 12, "name": "python3", "state": "D", "place": "nfs_wait", "rank": 3}


def test_a_process_is_known_again_and_a_pid_is_not() -> None:
    me = read_process(os.getpid())
    assert me is not None
    line = left_behind(me, rank=1)
    assert (line["uid"], line["name"], line["rank"]) == (os.getuid(), me.name, 1)
    assert is_still_alive(line)
    assert not is_still_alive({**line, "start_ticks": me.start_ticks + 1})
    assert not is_still_alive({**line, "boot_id": "another"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "pid 12 (python3) of rank 3, in state D (nfs_wait)"),
        ({"rank": None, "place": None}, "pid 12 (python3), in state D"),
        ({"refused": True, "uid": 0}, "pid 12 (python3) of rank 3, of uid 0"),
        (
            {"name": "\x1b[31m" + "x" * 99, "state": 5, "rank": "x"},
            f"pid 12 ([31m{'x' * 59}) (nfs_wait)",
        ),
        ({"name": None, "state": None, "place": None, "rank": None}, "pid 12"),
    ],
)
def test_it_is_told_in_one_line(changes: dict[str, Any], words: str) -> None:
    assert in_words({**LINE, **changes}) == words


@pytest.mark.parametrize(
    ("state", "threads", "is_over"),
    [("Z", 1, True), ("Z", 3, False), ("X", 0, True), ("D", 1, False)],
)
def test_a_zombie_whose_other_threads_run_is_not_over(
    state: str, threads: int, is_over: bool
) -> None:
    found = Process(pid=1, parent=1, state=state, start_ticks=1, rss_bytes=0, threads=threads)
    assert found.is_over == is_over
