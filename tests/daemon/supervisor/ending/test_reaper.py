"""Ending descendants that do not let themselves be ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.started import run

ROOT = Path(__file__).parents[4]
BEGIN = """
import ctypes, json, os, subprocess, sys, threading, time
from zerotoolsd.supervisor.procfs import kill_process, read_process
from zerotoolsd.supervisor.ranks import become_subreaper
from zerotoolsd.supervisor.ending.reaper import kill_all
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
