"""Ending descendants that do not let themselves be ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from zerotoolsd.supervisor.procfs import Process, read_process
from zerotoolsd.supervisor.stop.kill_descendants import in_words, is_still_alive, left_behind

ROOT = Path(__file__).parents[4]
BEGIN = """
import ctypes, json, os, subprocess, sys, threading, time
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.signal_process import kill_process
from zerotoolsd.supervisor.start_ranks import become_subreaper
from zerotoolsd.supervisor.stop.kill_descendants import kill_all
become_subreaper()
"""
REFUSED = """
child = subprocess.Popen(["sleep", "600"])
def refuse(process):
    raise PermissionError
killed = kill_all(0.02, kill=refuse)
print(json.dumps(killed.left_behind({child.pid: 2})))
child.kill()
"""
ZOMBIE = """
# Its first thread ends at once; the other lives, and what looks like a zombie is none.
pid = os.fork()
if not pid:
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).syscall({sys_exit}, 0)
while read_process(pid).state != "Z":
    time.sleep(0.001)
print(json.dumps([kill_all(20).stuck, os.path.exists(f"/proc/{{pid}}")]))
"""


def told(program: str) -> Any:
    path = f"{ROOT}:{ROOT / 'daemon'}"
    done = run(
        [sys.executable, "-c", BEGIN + program],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        timeout=20,
    )
    return json.loads(done.stdout)


def test_a_process_of_another_user_is_named_and_not_waited_for() -> None:
    (line,) = told(REFUSED)
    assert (line["refused"], line["rank"], line["name"]) == (True, 2, "sleep")


def test_a_program_whose_first_thread_has_ended_is_ended() -> None:
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    assert told(ZOMBIE.format(sys_exit=number)) == [[], False]


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
