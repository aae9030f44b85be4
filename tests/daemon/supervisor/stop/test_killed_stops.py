"""A process of an attempt is killed at a chosen moment of a stop: no later command begins.

The script runs `publish` after `train` in two shells. The moments are: before the request, when the
request is written and nobody has got a signal, and while `train` saves and both shells stand still.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.daemon.made_attempts import is_alive, make_attempt, started, supervise
from tests.daemon.supervisor.stop.test_stop_programs import begin, notes
from tests.daemon.waiting import wait_for
from tests.matrices import FULL
from zerotoolsd.supervisor.durable_files import read_json, write_json
from zerotoolsd.supervisor.procfs import all_processes, descendants

SCRIPT = 'sh -c "$T train; $T publish"; $T publish'
CASES = [
    (moment, victim)
    for moment in ("running", "requested", "saving")
    for victim in ("supervisor", "keeper", "shell", "inner shell", "program")
    if moment != "running" or victim in ("supervisor", "shell")  # of others nobody asked for an end
]
QUICK = {("running", "supervisor"), ("saving", "supervisor"), ("saving", "program")}
OUTCOMES = {"supervisor": {"lost"}, "keeper": {"stopped"}, "shell": {"crashed"}}


@pytest.mark.parametrize(("moment", "victim"), [c for c in CASES if FULL or c in QUICK])
def test_p12_nothing_begins_after_a_kill_in_a_stop(
    tmp_path: Path, moment: str, victim: str
) -> None:
    begin(tmp_path)
    slowly = tmp_path / "saves-slowly"
    slowly.touch()
    env = {"PATH": os.environ["PATH"], "T": "./program", "HOME": str(tmp_path)}
    argv = ("bash", "-c", SCRIPT)
    changes = {"own_program": True, "cwd": str(tmp_path), "world_size": 1}
    run = make_attempt(tmp_path / "run", "", argv=argv, env=env, **changes)
    keeper = supervise(run)
    wait_for(lambda: "train begins" in notes(tmp_path), "the program")
    record = started(run)
    rank = record["ranks"][0]["pid"]
    found = descendants(rank, all_processes())
    [inner] = (process for process in found if process.parent == rank)
    [program] = (process for process in found if process.parent == inner.pid)
    pids = {
        "supervisor": record["pid"],
        "keeper": record["keeper"]["pid"],
        "shell": rank,
        "inner shell": inner.pid,
        "program": program.pid,
    }
    if moment != "running":
        write_json(run / "request.json", {"reason": "pause"})
    if moment == "saving":
        os.kill(record["pid"], signal.SIGTERM)
        wait_for(lambda: "train asked" in notes(tmp_path), "the program to save")
    os.kill(pids[victim], signal.SIGKILL)
    if is_alive(record["pid"]):
        os.kill(record["pid"], signal.SIGTERM)
    slowly.unlink()
    keeper.wait(timeout=60)
    wait_for(lambda: not any(map(is_alive, pids.values())), "the attempt to end")
    assert "publish begins" not in notes(tmp_path)
    end = read_json(run / "exit.json")
    assert end is not None
    assert end["outcome"] in OUTCOMES.get(victim, {"crashed", "killed", "stopped"})
    if moment == "saving":
        assert end["stop_reason"] == "pause"
