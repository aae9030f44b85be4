from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.users.other_users import AS_ROOT
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.script import AdoptedProcess, adopted_process
from zerotoolsd.service.admission.adoptable_process import inspect_process, why_not_adoptable
from zerotoolsd.supervisor.procfs import boot_id, read_process

NOBODY = 65534
DAEMON = os.getpid()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Started]:
    """A process that another one of this user's has below it."""
    program = "sleep 1000 & echo; wait"
    child = Started(["sh", "-c", program], cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.end()


def refusal(pid: int, daemon_pid: int = DAEMON) -> str:
    with pytest.raises(BadRequest) as info:
        inspect_process(pid, daemon_pid)
    return str(info.value)


def test_who_it_is_and_what_it_runs(training: Started, tmp_path: Path) -> None:
    found = inspect_process(training.pid, DAEMON)
    process = adopted_process(found["adopted"])
    assert (process.pid, process.boot_id) == (training.pid, boot_id())
    assert found["command"] == ("sh", "-c", "sleep 1000 & echo; wait")
    assert found["directory"] == str(tmp_path)
    assert len(found["below"]) == 1
    assert list(why_not_adoptable(process)) == []


def test_words_that_are_no_text_are_shown_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"od\xffd")
    place.mkdir()
    words = ["sh", "-c", "read word", b"caf\xe9", "a\nb"]
    child = Started(words, cwd=place, stdin=subprocess.PIPE)
    try:
        found = inspect_process(child.pid, DAEMON)
        place.rmdir()
        moved = inspect_process(child.pid, DAEMON)
    finally:
        child.end()
    assert found["command"] == ("sh", "-c", "read word", "caf\ufffd", "a b")
    assert found["directory"] == f"{tmp_path}/od\ufffdd"
    assert moved["directory"] == f"{tmp_path}/od\ufffdd (deleted)"


def test_one_that_is_gone_is_refused_and_named_when_it_goes() -> None:
    child = Started(["sleep", "1000"])
    process = adopted_process(inspect_process(child.pid, DAEMON)["adopted"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert refusal(child.pid).endswith("has ended already")  # nobody has collected it yet
    child.wait()
    assert refusal(child.pid) == f"process {child.pid} does not exist on this machine, or has ended"
    (said,) = why_not_adoptable(process)
    assert said.endswith("it has ended, and cannot be watched again")


def test_a_pid_that_another_one_has_now_and_another_boot_are_somebody_else(
    training: Started,
) -> None:
    now = adopted_process(inspect_process(training.pid, DAEMON)["adopted"])
    (said,) = why_not_adoptable(AdoptedProcess(now.pid, now.start_ticks - 1, now.boot_id))
    assert "it has ended" in said
    (said,) = why_not_adoptable(AdoptedProcess(now.pid, now.start_ticks, "0" * 8 + now.boot_id[8:]))
    assert said.endswith("the machine was restarted")


def test_a_thread_is_no_process() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        said = refusal(thread.native_id or 0, daemon_pid=1)
    finally:
        done.set()
        thread.join()
    assert said == f"{thread.native_id} is a thread of process {os.getpid()}; name that process"


@pytest.mark.skipif(not Path("/proc/2/comm").exists(), reason="kernel threads are not seen here")
def test_a_thread_of_the_kernel_is_refused() -> None:
    assert "is a thread of the kernel" in refusal(2)


def test_neither_the_daemon_nor_who_has_started_it() -> None:
    assert "is the daemon itself" in refusal(os.getpid())
    with sleeping() as daemon:
        assert "has started the daemon" in refusal(os.getpid(), daemon_pid=daemon)


@contextmanager
def sleeping(**options: Any) -> Iterator[int]:
    """The pid of a child of this process."""
    child = Started(["sleep", "1000"], **options)
    try:
        yield child.pid
    finally:
        child.end()


def test_no_process_of_a_job() -> None:
    with sleeping(env={**os.environ, "ZEROTOOLS_TOKEN": "abc"}) as pid:
        assert "belongs to a job of zerotools already" in refusal(pid)


@AS_ROOT
def test_no_process_of_another_user() -> None:
    with sleeping(user=NOBODY) as pid:
        said = refusal(pid)
        assert f"belongs to uid {NOBODY}, and you are uid {os.getuid()}" in said
        process = read_process(pid)
        assert process is not None
        identity = AdoptedProcess(pid, process.start_ticks, boot_id())
        assert list(why_not_adoptable(identity)) == [
            f"script.adopted: process {pid} belongs to another user"
        ]
