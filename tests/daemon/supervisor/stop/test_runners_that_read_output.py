"""Whoever reads what a program writes while it saves runs on; programs that start programs do not
keep a stop from these.

`./talk NAME` is a program that writes more than a pipe holds when it is asked to stop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.supervisor.stop.test_stop_programs import Stopped, all_of, stop
from tests.daemon.waiting import wait_for
from tests.matrices import FULL
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.stop.runners_that_read_output import Flow, Readers, only_feed

TALK = """
import os, signal, sys
def note(what):
    with open("notes", "a") as notes:
        notes.write(f"{sys.argv[1]} {what}\\n")
def save(*_):
    note("asked")
    for number in range(300):
        os.write(1, b"%d %s\\n" % (number, b"x" * 400))
    note("saved")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
note("begins")
while True:
    signal.pause()
"""
DRIVERS = {
    "lines": """
from subprocess import PIPE, Popen
for name in ("train", "publish"):
    process = Popen(["./talk", name], stdout=PIPE)
    for line in process.stdout:
        print(line.decode(), end="", flush=True)
    process.wait()
""",
    "captures": """
import subprocess
for name in ("train", "publish"):
    subprocess.run(["./talk", name], capture_output=True)
""",
    "polls": """
import time
from subprocess import Popen
for name in ("train", "publish"):
    process = Popen(["./talk", name])
    while process.poll() is None:
        time.sleep(0.02)
""",
    "has a limit": """
import subprocess
for name in ("train", "publish"):
    subprocess.run(["./talk", name], timeout=600)
""",
    "asyncio": """
import asyncio
async def main():
    for name in ("train", "publish"):
        await (await asyncio.create_subprocess_exec("./talk", name)).wait()
asyncio.run(main())
""",
    "spawns": """
import multiprocessing, os
def start(name):
    os.execv("./talk", ["./talk", name])
if __name__ == "__main__":
    for name in ("train", "publish"):
        process = multiprocessing.get_context("spawn").Process(target=start, args=(name,))
        process.start()
        multiprocessing.connection.wait([process.sentinel])
""",
}


def talk(tmp_path: Path, script: str) -> Stopped:
    (tmp_path / "talk").write_text(f"#!{sys.executable} -IS\n{TALK}")
    (tmp_path / "talk").chmod(0o755)
    return stop(tmp_path, script, "train")


@pytest.mark.parametrize(
    "script",
    [
        "./talk train | tr y z | tee log; $T publish",
        "./talk train | cat | cut -c1-500 | dd of=log status=none; $T publish",
        "./talk train | sort > log; $T publish",
        "./talk train | xargs -n2 echo > /dev/null; $T publish",
        f"./talk train | {sys.executable} -c 'for l in open(0): print(l)' > log; $T publish",
        "./talk train | (read -r l; exec "
        f"{sys.executable} -c 'for l in open(0): print(l)' > log); $T publish",
        "x=$(./talk train); $T publish",
        "echo $(./talk train | tr y z); $T publish",
        "while read -r l; do echo $l >> log; done < <(./talk train); $T publish",
        "(setsid ./talk train | cat > log &) ; sleep 600; $T publish",
    ],
)
def test_a_program_can_write_while_it_saves(tmp_path: Path, script: str) -> None:
    found = talk(tmp_path, script)
    assert found.notes == ("train begins", "train asked", "train saved")
    if (log := tmp_path / "log").exists():
        assert "299 x" in log.read_text()


def test_a_filter_in_the_background_that_is_slow_writes_all(tmp_path: Path) -> None:
    """Nobody but the stop waits for it: neither its shell nor the shell of the rank."""
    slow = "import sys, time; read = sys.stdin.read(); time.sleep(0.3); print(read)"
    (tmp_path / "tee").write_text(f"#!{sys.executable} -IS\n{slow}\n")
    (tmp_path / "tee").chmod(0o755)
    talk(tmp_path, "(setsid ./talk train | ./tee > log &) ; sleep 600; $T publish")
    assert "299 x" in (tmp_path / "log").read_text()


# In place of its shell, and with a shell that waits for it, which differs for one of them alone.
@pytest.mark.parametrize(
    ("name", "after"),
    [
        *((name, "; $T publish") for name in DRIVERS),
        *((name, "") for name in DRIVERS if FULL or name == "lines"),
    ],
)
def test_a_python_program_passes_a_stop_on(tmp_path: Path, name: str, after: str) -> None:
    (tmp_path / "driver.py").write_text(DRIVERS[name])
    found = talk(tmp_path, f"{sys.executable} -S driver.py{after}")
    assert {*found.notes} == all_of("train")
    assert len(found.notes) == 3
    assert found.record["outcome"] == "stopped"
    if name == "lines":
        assert found.output[-1].startswith("299 x")


AGENT = """
import os, signal, sys
from subprocess import Popen
def end(*_):
    child.kill()  # long before the grace is over
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
child = Popen(["./talk", "train"], env={**os.environ, "TORCHELASTIC_RUN_ID": "7"})
sys.exit(child.wait())
"""


def test_the_ranks_of_torchrun_in_a_script_have_the_whole_grace(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    found = talk(tmp_path, f"{sys.executable} -IS agent.py; $T publish")
    assert found.notes == ("train begins", "train asked", "train saved")


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed")
def test_a_program_that_is_many_is_known_by_what_it_is_called_as(tmp_path: Path) -> None:
    found = talk(tmp_path, "busybox timeout 600 ./talk train | busybox tr y z > log; $T publish")
    assert found.notes == ("train begins", "train asked", "train saved")


def test_a_reader_does_not_find_the_end_of_its_pipe_until_it_is_forgotten() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        while os.read(read, 100):
            pass
        os._exit(0)
    os.close(read)
    process = read_process(pid)
    assert process is not None
    readers, pipe = Readers(), f"pipe:[{os.fstat(write).st_ino}]"
    wait_for(lambda: pipe in readers.hold_open(process), "the child")
    assert readers.must_continue(process, Flow().of([{pipe}]))
    os.write(write, b"last")
    os.close(write)
    wait_for(lambda: not readers.must_continue(process, set()), "all to be read")
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    readers.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_a_shell_without_children_waits_for_none_that_feeds_it() -> None:
    """As between the end of its `$(date)` and its next line."""
    with Started(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        feeder = read_process(child.pid)
        assert feeder is not None
        assert child.stdout is not None
        assert child.stdin is not None
        read = {f"pipe:[{os.fstat(child.stdout.fileno()).st_ino}]"}
        assert only_feed([feeder], read)
        assert not only_feed([feeder], {"pipe:[0]"})
        assert not only_feed([], read)
        child.stdin.close()


def test_what_was_left_behind_and_ignores_sigterm_takes_no_time(tmp_path: Path) -> None:
    found = talk(tmp_path, "(trap '' TERM; setsid sleep 600 &); ./talk train; $T publish")
    assert found.notes == ("train begins", "train asked", "train saved")
    assert found.record["cause"] == "stopped without a checkpoint"
