"""Programs that are begun and not waited for, also where their directory never answers."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.hung_disks import hung_disk
from tests.daemon.made_attempts import finish, make_attempt, supervise, wait_for_file
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor import spawn_child
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.spawn_child import BegunProgram, CannotStart


def begun(tmp_path: Path, *argv: str, cwd: str = "/", **env: str) -> tuple[BegunProgram, Path]:
    output = tmp_path / "output"
    fd = os.open(output, os.O_CREAT | os.O_WRONLY)
    try:
        return spawn_child.start_child(argv, env=env, cwd=cwd, output=fd, umask=0o077), output
    finally:
        os.close(fd)


def ended(child: BegunProgram) -> int:
    _, status = os.waitpid(child.pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_it_runs_in_its_directory_with_its_environment_and_nothing_else(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    program = "pwd; umask; echo $WORD; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; cat"
    child, output = begun(tmp_path, "sh", "-c", program, cwd="/usr", PATH="/usr/bin:/bin", WORD="w")
    os.close(lock)
    while not child.is_over():
        select.select([child.fd], [], [])
    assert ended(child) == 0
    # Three, and that of the directory which ls reads.
    assert output.read_text().split() == ["/usr", "0077", "w", "4", "500"]
    child.close()


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "message"),
    [
        (("/no/such",), "/", errno.ENOENT, "/no/such cannot be started: No such file or directory"),
        (("/etc",), "/", errno.EACCES, "/etc cannot be started: Permission denied"),
        (("true", "a\0b"), "/", errno.EINVAL, "true cannot be started: Invalid argument"),
        (
            ("true",),
            "/no/such",
            errno.ENOENT,
            "the directory /no/such cannot be entered: No such file or directory",
        ),
    ],
)
def test_why_it_cannot_be_started(
    tmp_path: Path, argv: tuple[str, ...], cwd: str, code: int, message: str
) -> None:
    child, _ = begun(tmp_path, *argv, cwd=cwd, PATH="/usr/bin:/bin")
    assert ended(child) == spawn_child.NO_PROGRAM
    with pytest.raises(CannotStart) as raised:
        child.is_over()
    assert (raised.value.error.errno, str(raised.value)) == (code, message)
    child.close()


def test_a_control_group_that_is_gone_is_no_fault_of_the_job(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output:
        gone = str(tmp_path / "gone" / "cgroup.procs")
        child = spawn_child.start_child(
            ["true"], env={}, cwd="/", output=output.fileno(), umask=0o077, entrance=gone
        )
    assert ended(child) == spawn_child.NO_PROGRAM
    with pytest.raises(CannotStart, match="its control group cannot be entered: No such") as raised:
        child.is_over()
    assert raised.value.is_ours
    child.close()


def test_a_sigterm_right_after_the_fork_ends_it(tmp_path: Path) -> None:
    """The supervisor has a handler of its own, which the child has, too, until it has let go."""
    forked: list[int] = []

    def asked_at_once() -> None:
        if forked == [os.getppid()]:
            os.kill(os.getpid(), signal.SIGTERM)

    os.register_at_fork(after_in_child=asked_at_once)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    forked.append(os.getpid())
    try:
        child, _ = begun(tmp_path, "true", PATH="/usr/bin:/bin")
    finally:
        forked.clear()  # what was registered stays so
        signal.signal(signal.SIGTERM, before)
    assert ended(child) == -signal.SIGTERM
    assert child.is_over()
    child.close()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_is_awaited() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    child = BegunProgram(1, reading, "/bin/python", "/data")
    for said, awaited in ((b"d", "the directory /data"), (b"p", "/bin/python")):
        os.write(writing, said)
        assert not child.is_over()
        assert child.awaited == awaited
    os.close(writing)
    assert child.is_over()
    child.close()


OWN: dict[str, Any] = {"own_program": True, "world_size": 1, "argv": (sys.executable, "-c", "")}


def test_a_directory_that_does_not_answer_is_waited_for_and_named(tmp_path: Path) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        disk.hang()
        run = make_attempt(tmp_path / "run", "", cwd=str(disk.door), **OWN)
        process = supervise(run)
        wait_for_file(run / PROGRESS)
        why = f'"the directory {disk.door} does not answer'
        wait_for(lambda: why in (run / PROGRESS).read_text(), "it to say what it waits for")
        write_json(run / "request.json", {"reason": "cancel"})
        pid = wait_for(lambda: _killed_below(process.pid), "the child to be killed")
        assert pid is not None
        disk.let_go()
        record = finish(run, process)
        assert (record["outcome"], record["cause"]) == ("killed", "stopped before it began")


SAVES = """
import pathlib, signal, sys
def save(*_):
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "runs").touch()
while True:
    signal.pause()
"""


def test_a_rank_that_runs_has_its_grace_while_another_is_still_being_started(
    tmp_path: Path,
) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        disk.hang(but_for_the_first=True)
        program = (sys.executable, "-I", "-S", "-c", SAVES, str(tmp_path))
        ranks = {"own_program": True, "world_size": 2, "argv": program}
        run = make_attempt(tmp_path / "run", "", cwd=str(disk.door), **ranks)
        process = supervise(run)
        wait_for_file(tmp_path / "runs")
        wait_for(lambda: disk.is_awaited, "the other to enter its directory")
        write_json(run / "request.json", {"reason": "cancel"})
        wait_for_file(tmp_path / "saved")
        disk.let_go()
        record = finish(run, process)
    assert record["cause"] != "stopped before it began"
    ends = [(rank["exit_code"], rank["signal"], rank["killed"]) for rank in record["ranks"]]
    assert (0, None, False) in ends


def _killed_below(keeper: int) -> int | None:
    """A process of the attempt that sleeps in the kernel though it was killed."""
    for entry in Path("/proc").iterdir():
        process = read_process(int(entry.name)) if entry.name.isdecimal() else None
        if process is None or process.state != "D":
            continue
        parent = read_process(process.parent)
        if parent is not None and parent.parent == keeper:
            return process.pid
    return None


def test_a_directory_that_answers_again_lets_the_job_go_on(tmp_path: Path) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        run = make_attempt(tmp_path / "run", "", cwd=str(disk.door), **OWN)
        assert finish(run, supervise(run))["outcome"] == "finished"


LATE = """
import os, signal
from zerotoolsd.supervisor.spawn_child import SignalWaker, handle_until_exit

class Last:
    def __init__(self):
        self.kill, self.me = os.kill, os.getpid()

    def __del__(self):
        self.kill(self.me, 1)
        self.kill(self.me, 15)

last = Last()  # deleted when the interpreter ends, after it has restored its signals
waker = SignalWaker()
handle_until_exit(waker._on_term, signal.SIGHUP)
"""
OWN_HANDLER = LATE + "signal.signal(15, lambda *_: None)"


@pytest.mark.parametrize(("program", "status"), [(LATE, 0), (OWN_HANDLER, -signal.SIGTERM)])
def test_a_signal_while_the_interpreter_ends_changes_no_exit_status(
    program: str, status: int
) -> None:
    """A handler that was installed later stays as it is."""
    env = {**os.environ, "PYTHONPATH": str(Path(spawn_child.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=False)
    assert done.returncode == status
