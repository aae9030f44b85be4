"""What forged records say of processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.users.other_users import AS_ROOT, OTHER_UID, UID, open_directory, user_of
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts import attempt_status
from zerotoolsd.attempts.leftovers import orphans
from zerotoolsd.attempts.leftovers.untrusted_record import LARGEST_KEPT, sanitize
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.procfs import (
    boot_id,
    is_of_uid,
    read_process,
    send_signal,
    signal_process,
)
from zerotoolsd.users.open_as_user import make_owned

pytestmark = AS_ROOT
TOKEN = "f0" * 16


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with open_directory() as place:
        make_owned(place / "attempt-1", user_of().account)
        yield place / "attempt-1"


def sleeper(uid: int, **env: str) -> tuple[Started, dict[str, Any]]:
    process = Started(("/bin/sleep", "60"), user=uid, group=uid, extra_groups=[], env=env)
    wait_for(lambda: is_of_uid(process.pid, uid), "it to be the user's")
    return process, line_of(process.pid)


def line_of(pid: int) -> dict[str, Any]:
    found = read_process(pid)
    assert found is not None
    return {"pid": pid, "start_ticks": found.start_ticks, "boot_id": boot_id()}


def test_a_record_keeps_no_gpu_for_a_process_of_others(run_dir: Path) -> None:
    others, named = sleeper(OTHER_UID)
    record = {"outcome": "killed", "unkillable": [line_of(1), line_of(os.getpid()), named]}
    assert sanitize(run_dir, record)["unkillable"] == []
    assert others.is_running()
    others.end()
    assert sanitize(run_dir.parent, record) == record  # the daemon's own is believed


def test_what_it_says_is_left_of_the_user_is_ended(run_dir: Path) -> None:
    own, named = sleeper(UID)
    sanitize(run_dir, {"unkillable": [named]})
    assert own.wait(timeout=20) != 0
    assert sanitize(run_dir, {"unkillable": [named]})["unkillable"] == []


@pytest.mark.parametrize("uid", [0, OTHER_UID])
def test_a_forged_run_json_names_nobody_elses_process(run_dir: Path, uid: int) -> None:
    others, named = sleeper(uid, ZEROTOOLS_TOKEN=TOKEN)
    run = {**named, "token": TOKEN, "keeper": named, "started": 1.0, "started_clock": 1.0}
    write_json(run_dir / "run.json", run)
    os.chown(run_dir / "run.json", UID, UID)
    found = attempt_status.run_dir_status(run_dir, TOKEN)
    assert isinstance(found, attempt_status.Gone)
    traces = orphans.traces_of(run_dir, TOKEN)
    assert traces.uid == UID
    assert orphans.kill_strays(traces) == []
    assert others.is_running()
    others.end()


def test_a_child_of_the_attempt_that_became_another_is_left(run_dir: Path) -> None:
    own, named = sleeper(UID, ZEROTOOLS_TOKEN=TOKEN)
    write_json(run_dir / "run.json", {**named, "token": TOKEN})
    os.chown(run_dir / "run.json", UID, UID)
    assert [p.pid for p in orphans.kill_strays(orphans.traces_of(run_dir, TOKEN))] == [own.pid]
    assert own.wait(timeout=20) != 0


def test_signals_reach_processes_of_that_user_alone() -> None:
    own, named = sleeper(UID)
    pid, start = named["pid"], named["start_ticks"]
    assert not signal_process(pid, start, 9, uid=OTHER_UID)  # type: ignore[arg-type]
    assert own.is_running()
    assert signal_process(pid, start, 9, uid=UID)  # type: ignore[arg-type]
    assert own.wait(timeout=20) != 0


def as_user(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, UID, UID)


WAYS = ("closed", "lock is a directory", "record is a directory", "ledger", "plan")


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_that_its_user_spoils_is_of_an_attempt_that_is_gone(
    run_dir: Path, way: str
) -> None:
    """Nothing waits for such a directory: a lease on GPUs would never end."""
    run = {"pid": 2**22 + 1, "start_ticks": 1, "token": TOKEN, "boot_id": boot_id()}
    names = {"ranks": 10**9} if way == "plan" else {}
    if way == "lock is a directory":
        (run_dir / "lock").mkdir()
    else:
        write_json(run_dir / "run.json", run)
    if way == "record is a directory":
        (run_dir / "exit.json").mkdir()
    if way in ("ledger", "plan"):
        plan = Plan(
            **{**dict.fromkeys(Plan.__dataclass_fields__), "env": {}, "token": TOKEN},  # type: ignore[arg-type]
        )
        tree = {**plan.__dict__, "launcher": False, "world_size": 10**9}
        (run_dir / "attempt.json").write_text(json.dumps({**tree, **names}, default=str))
        (run_dir / "ledger").touch()
        os.truncate(run_dir / "ledger", (10**9 + 1) * 10)
    as_user(run_dir)
    if way == "closed":
        run_dir.chmod(0)
    assert isinstance(attempt_status.run_dir_status(run_dir, TOKEN), attempt_status.Gone)


def test_a_record_takes_its_part_of_the_queue_and_no_more(run_dir: Path) -> None:
    kept = {"outcome": "crashed", "cause": "why", "checkpoint": {"step": 3}}
    record = {**kept, "last_lines": "x" * LARGEST_KEPT, "errors": ["y"] * LARGEST_KEPT}
    assert sanitize(run_dir, record) == kept
    assert sanitize(run_dir.parent, record) == record


def test_a_signal_reaches_no_process_that_became_anothers() -> None:
    own, _ = sleeper(UID)
    pidfd = os.pidfd_open(own.pid)
    try:
        assert not send_signal(pidfd, signal.SIGKILL, OTHER_UID)
        assert own.is_running()
        assert send_signal(pidfd, signal.SIGKILL, UID)
        assert own.wait(timeout=20) != 0
        assert not send_signal(pidfd, signal.SIGKILL, UID)
    finally:
        os.close(pidfd)
