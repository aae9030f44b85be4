"""What is left of an attempt is found by what it cannot change, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from harness.started import Started
from tests.daemon.users.other_users import AS_ROOT, OTHER_UID, UID, open_directory, user_of
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts import attempt_status, orphan_processes
from zerotoolsd.attempts.orphan_processes import LARGEST_KEPT, check_user_record
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup
from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.exit_record.process_ledgers import FAMILY, ProcessTreeFile
from zerotoolsd.supervisor.procfs import Process, all_processes, boot_id, read_process
from zerotoolsd.supervisor.signal_process import is_of_uid, send_signal, signal_process
from zerotoolsd.users.open_as_user import make_owned

TOKEN = uuid4().hex
"""Of this process: tests that run side by side look for processes by their tokens."""


@pytest.fixture
def hidden() -> Iterator[Process]:
    """A process without environment, in a session of its own."""
    started = Started(["cat"], stdin=subprocess.PIPE, env={}, start_new_session=True)
    found = read_process(started.pid)
    assert found is not None
    yield found
    started.kill()
    started.communicate()


def traces(
    run: Path, note: list[Process], moment: int = 2**60, **changes: Any
) -> orphan_processes.Traces:
    record = {
        "token": TOKEN,
        "boot_id": boot_id(),
        "pid": 2**22 + 1,
        "start_ticks": 1,
        "keeper": {"pid": 2**22 + 2, "start_ticks": 1},
        "ranks": [{"rank": 5, "pid": note[0].pid if note else 1}],
    }
    write_json(run / "run.json", {**record, **changes})
    ProcessTreeFile(run / FAMILY).write(moment, note)
    return orphan_processes.traces_of(run, TOKEN)


def test_a_process_that_was_noted_is_found_without_any_mark(
    tmp_path: Path, hidden: Process
) -> None:
    assert orphan_processes.find_attempt_processes(traces(tmp_path, [])) == []
    found = traces(tmp_path, [hidden])
    assert [p.pid for p in orphan_processes.find_attempt_processes(found)] == [hidden.pid]
    assert found.ranks == {hidden.pid: 5}


def test_one_of_its_session_is_found_and_what_descends_from_it(
    tmp_path: Path, hidden: Process
) -> None:
    found = traces(tmp_path, [hidden._replace(pid=2**22 + 3)])
    child = hidden._replace(pid=2**22 + 4, parent=hidden.pid, session=9, start_ticks=2**59)
    table = {**all_processes(), child.pid: child}
    assert {p.pid for p in orphan_processes.find_attempt_processes(found, lambda: table)} == {
        hidden.pid,
        child.pid,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another"},
        {"token": "e" * 32},
        {"keeper": {"pid": 1, "start_ticks": 2**61}, "start_ticks": 2**61},  # began after it
    ],
)
def test_what_another_boot_or_attempt_noted_proves_nothing(
    tmp_path: Path, hidden: Process, changes: dict[str, Any]
) -> None:
    assert orphan_processes.find_attempt_processes(traces(tmp_path, [hidden], **changes)) == []


def test_neither_this_process_nor_its_parents_are_ever_found(
    tmp_path: Path, hidden: Process
) -> None:
    table = all_processes()
    mine = [table[os.getpid()], table[os.getppid()], hidden]
    assert [p.pid for p in orphan_processes.find_attempt_processes(traces(tmp_path, mine))] == [
        hidden.pid
    ]


def test_a_sweep_names_what_it_may_not_end(tmp_path: Path, hidden: Process) -> None:
    def refuse(process: Process, uid: int | None) -> None:
        raise PermissionError

    sweep = orphan_processes.OrphanKiller(traces(tmp_path, [hidden]), kill=refuse)
    assert sweep.kill_remaining()
    (line,) = sweep.left_behind()
    assert (line["pid"], line["rank"], line["refused"]) == (hidden.pid, 5, True)
    assert orphan_processes.OrphanKiller(sweep.traces).kill_remaining()


def test_what_the_control_group_ends_is_counted_too(tmp_path: Path, hidden: Process) -> None:
    done: list[str] = []

    class Group(AttemptGroup):
        def pids(self) -> list[int]:
            return []

        def kill(self) -> None:
            done.append("killed")

    found = replace(traces(tmp_path, [hidden]), group=Group(tmp_path / "zerotools-1"))

    def find(known: orphan_processes.Traces) -> list[Process]:
        return [] if done else orphan_processes.find_attempt_processes(known)

    sweep = orphan_processes.OrphanKiller(found, kill=lambda process, uid: None, find=find)
    assert sweep.kill_remaining()
    assert sweep.found == {(hidden.pid, hidden.start_ticks)}
    assert not sweep.kill_remaining()
    assert done


def test_a_program_that_is_only_being_started_is_known_by_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts a process goes on before the kernel shows its environment."""
    token = {**os.environ, "ZEROTOOLS_TOKEN": TOKEN}
    with Started(["cat"], stdin=subprocess.PIPE, env=token) as started:
        hidden, looks, read = f"/proc/{started.pid}/", [], Path.read_bytes

        def late(path: Path) -> bytes:
            if str(path).startswith(hidden):
                looks.append(path.name)
            begun = looks.count("cmdline") > 2
            return read(path) if begun or not str(path).startswith(hidden) else b""

        monkeypatch.setattr(Path, "read_bytes", late)
        assert [p.pid for p in orphan_processes.find_attempt_processes(traces(tmp_path, []))] == [
            started.pid
        ]
        started.kill()


pytestmark = AS_ROOT
RECORD_TOKEN = "f0" * 16


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
    assert check_user_record(run_dir, record)["unkillable"] == []
    assert others.is_running()
    others.end()
    assert check_user_record(run_dir.parent, record) == record  # the daemon's own is believed


def test_what_it_says_is_left_of_the_user_is_ended(run_dir: Path) -> None:
    own, named = sleeper(UID)
    check_user_record(run_dir, {"unkillable": [named]})
    assert own.wait(timeout=20) != 0
    assert check_user_record(run_dir, {"unkillable": [named]})["unkillable"] == []


@pytest.mark.parametrize("uid", [0, OTHER_UID])
def test_a_forged_run_json_names_nobody_elses_process(run_dir: Path, uid: int) -> None:
    others, named = sleeper(uid, ZEROTOOLS_TOKEN=RECORD_TOKEN)
    run = {**named, "token": RECORD_TOKEN, "keeper": named, "started": 1.0, "started_clock": 1.0}
    write_json(run_dir / "run.json", run)
    os.chown(run_dir / "run.json", UID, UID)
    found = attempt_status.run_dir_status(run_dir, RECORD_TOKEN)
    assert isinstance(found, attempt_status.Gone)
    traces = orphan_processes.traces_of(run_dir, RECORD_TOKEN)
    assert traces.uid == UID
    assert orphan_processes.kill_orphans(traces) == []
    assert others.is_running()
    others.end()


def test_a_child_of_the_attempt_that_became_another_is_left(run_dir: Path) -> None:
    own, named = sleeper(UID, ZEROTOOLS_TOKEN=RECORD_TOKEN)
    write_json(run_dir / "run.json", {**named, "token": RECORD_TOKEN})
    os.chown(run_dir / "run.json", UID, UID)
    assert [
        p.pid
        for p in orphan_processes.kill_orphans(orphan_processes.traces_of(run_dir, RECORD_TOKEN))
    ] == [own.pid]
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
    run = {"pid": 2**22 + 1, "start_ticks": 1, "token": RECORD_TOKEN, "boot_id": boot_id()}
    names = {"ranks": 10**9} if way == "plan" else {}
    if way == "lock is a directory":
        (run_dir / "lock").mkdir()
    else:
        write_json(run_dir / "run.json", run)
    if way == "record is a directory":
        (run_dir / "exit.json").mkdir()
    if way in ("ledger", "plan"):
        plan = Plan(
            **{**dict.fromkeys(Plan._fields), "env": {}, "token": RECORD_TOKEN},  # type: ignore[arg-type]
        )
        tree = {**plan._asdict(), "launcher": False, "world_size": 10**9}
        (run_dir / "attempt.json").write_text(json.dumps({**tree, **names}, default=str))
        (run_dir / "ledger").touch()
        os.truncate(run_dir / "ledger", (10**9 + 1) * 10)
    as_user(run_dir)
    if way == "closed":
        run_dir.chmod(0)
    assert isinstance(attempt_status.run_dir_status(run_dir, RECORD_TOKEN), attempt_status.Gone)


def test_a_record_takes_its_part_of_the_queue_and_no_more(run_dir: Path) -> None:
    kept = {"outcome": "crashed", "cause": "why", "checkpoint": {"step": 3}}
    record = {**kept, "last_lines": "x" * LARGEST_KEPT, "errors": ["y"] * LARGEST_KEPT}
    assert check_user_record(run_dir, record) == kept
    assert check_user_record(run_dir.parent, record) == record


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
