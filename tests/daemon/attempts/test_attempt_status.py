"""What is found of an attempt after the daemon was gone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts import attempt_status, orphan_processes
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.procfs import boot_id, read_process

TOKEN = "f" * 32


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """A process that waits, and has the token in its environment."""
    process = Started(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={"ZEROTOOLS_TOKEN": TOKEN},
    )
    yield process
    process.kill()
    process.communicate()


def identity(process: Started, **changes: Any) -> dict[str, Any]:
    own = read_process(process.pid)
    assert own is not None
    return {
        "pid": own.pid,
        "start_ticks": own.start_ticks,
        "boot_id": boot_id(),
        "token": TOKEN,
        **changes,
    }


def test_an_exit_record_decides(tmp_path: Path, sleeper: Started) -> None:
    write_json(tmp_path / "run.json", identity(sleeper))
    write_json(tmp_path / "exit.json", {"token": TOKEN, "outcome": "finished"})
    found = attempt_status.run_dir_status(tmp_path, TOKEN)
    assert isinstance(found, attempt_status.Over)
    assert found.record["outcome"] == "finished"


def test_a_living_supervisor_is_found(tmp_path: Path, sleeper: Started) -> None:
    write_json(tmp_path / "run.json", identity(sleeper))
    found = attempt_status.run_dir_status(tmp_path, TOKEN)
    assert isinstance(found, attempt_status.Alive)
    os.close(found.pidfd)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"start_ticks": 1}, "its supervisor was killed"),
        ({"boot_id": "another"}, "the machine was restarted"),
        ({"token": "x"}, "its run directory belongs to another attempt"),
    ],
)
def test_a_pid_alone_is_no_identity(
    tmp_path: Path, sleeper: Started, changes: dict[str, Any], cause: str
) -> None:
    write_json(tmp_path / "run.json", identity(sleeper, **changes))
    assert attempt_status.run_dir_status(tmp_path, TOKEN) == attempt_status.Gone(cause)


def test_an_exit_record_of_another_attempt_is_not_believed(tmp_path: Path) -> None:
    write_json(tmp_path / "exit.json", {"token": "x", "outcome": "finished"})
    assert attempt_status.run_dir_status(tmp_path, TOKEN) == attempt_status.NeverStarted()


def test_a_garbled_record_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "exit.json").write_text("{")
    assert isinstance(attempt_status.run_dir_status(tmp_path, TOKEN), attempt_status.Gone)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("exit.json", {"checkpoint": {"stepp": 3}}),
        ("exit.json", {"checkpoint": {"step": 2**70}}),
        ("exit.json", {"unkillable": None}),
        ("exit.json", {"unkillable": [{"pid": "1"}]}),
        ("run.json", {"pid": None}),
        ("run.json", {"pid": -1}),
        ("run.json", {"start_ticks": []}),
    ],
)
def test_a_record_of_another_shape_is_not_believed(
    tmp_path: Path, sleeper: Started, name: str, changes: dict[str, Any]
) -> None:
    write_json(tmp_path / name, {**identity(sleeper), "outcome": "finished", **changes})
    found = attempt_status.run_dir_status(tmp_path, TOKEN)
    assert isinstance(found, attempt_status.Gone)
    assert name in found.cause


@pytest.mark.parametrize("name", ["exit.json", "run.json"])
@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"token": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 40 + b"]" * 40 + b', "token": "' + TOKEN.encode() + b'"}',
        b'{"x": [' + b"[]," * 2_000_000 + b"[]]}",
        b'{"token": "\xff"}',
    ],
    ids=["a list", "no end", "deep", "6 MB of lists", "not UTF-8"],
)
def test_a_record_that_attacks_is_not_believed(tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / name).write_bytes(text)
    found = attempt_status.run_dir_status(tmp_path, TOKEN)
    assert isinstance(found, attempt_status.Gone)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_record_and_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "exit.json")
    assert isinstance(attempt_status.run_dir_status(tmp_path, TOKEN), attempt_status.Gone)


def test_a_held_lock_means_that_it_is_starting(tmp_path: Path) -> None:
    assert attempt_status.run_dir_status(tmp_path, TOKEN) == attempt_status.NeverStarted()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert attempt_status.run_dir_status(tmp_path, TOKEN) == attempt_status.Starting()
        assert not attempt_status.fence_unstarted_attempt(tmp_path, {})
    assert attempt_status.run_dir_status(tmp_path, TOKEN) == attempt_status.NeverStarted()


def test_p2_a_fenced_attempt_cannot_start_any_more(tmp_path: Path) -> None:
    from tests.daemon.made_attempts import make_attempt, supervise
    from zerotoolsd.supervisor.attempt_plan import EXIT_USED

    run = make_attempt(tmp_path / "run", "exit=0")
    assert attempt_status.fence_unstarted_attempt(run, {"token": TOKEN, "outcome": "lost"})
    assert supervise(run).wait(timeout=10) == EXIT_USED
    assert not (run / "run.json").exists()


def test_strays_are_found_by_their_token(sleeper: Started) -> None:
    found = wait_for(
        lambda: orphan_processes.kill_orphans(orphan_processes.Traces(TOKEN)),
        "the stray to be found",
    )
    assert [process.pid for process in found] == [sleeper.pid]
    assert sleeper.wait(timeout=10) == -9
    assert orphan_processes.kill_orphans(orphan_processes.Traces(TOKEN)) == []
