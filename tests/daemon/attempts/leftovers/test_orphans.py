"""What is left of an attempt is found by what it cannot change, and nothing else is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from harness.started import Started
from zerotoolsd.attempts.leftovers import orphans
from zerotoolsd.supervisor.cgroups.group import AttemptGroup
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.supervisor.ending.process_tree import FAMILY, FamilyNote
from zerotoolsd.supervisor.procfs import Process, boot_id, processes, read_process

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


def traces(run: Path, note: list[Process], moment: int = 2**60, **changes: Any) -> orphans.Traces:
    record = {
        "token": TOKEN,
        "boot_id": boot_id(),
        "pid": 2**22 + 1,
        "start_ticks": 1,
        "keeper": {"pid": 2**22 + 2, "start_ticks": 1},
        "ranks": [{"rank": 5, "pid": note[0].pid if note else 1}],
    }
    write_json(run / "run.json", {**record, **changes})
    FamilyNote(run / FAMILY).write(moment, note)
    return orphans.traces_of(run, TOKEN)


def test_a_process_that_was_noted_is_found_without_any_mark(
    tmp_path: Path, hidden: Process
) -> None:
    assert orphans.find(traces(tmp_path, [])) == []
    found = traces(tmp_path, [hidden])
    assert [p.pid for p in orphans.find(found)] == [hidden.pid]
    assert found.ranks == {hidden.pid: 5}


def test_one_of_its_session_is_found_and_what_descends_from_it(
    tmp_path: Path, hidden: Process
) -> None:
    found = traces(tmp_path, [replace(hidden, pid=2**22 + 3)])
    child = replace(hidden, pid=2**22 + 4, parent=hidden.pid, session=9, start_ticks=2**59)
    table = {**processes(), child.pid: child}
    assert {p.pid for p in orphans.find(found, lambda: table)} == {hidden.pid, child.pid}


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
    assert orphans.find(traces(tmp_path, [hidden], **changes)) == []


def test_neither_this_process_nor_its_parents_are_ever_found(
    tmp_path: Path, hidden: Process
) -> None:
    table = processes()
    mine = [table[os.getpid()], table[os.getppid()], hidden]
    assert [p.pid for p in orphans.find(traces(tmp_path, mine))] == [hidden.pid]


def test_a_sweep_names_what_it_may_not_end(tmp_path: Path, hidden: Process) -> None:
    def refuse(process: Process, uid: int | None) -> None:
        raise PermissionError

    sweep = orphans.Sweep(traces(tmp_path, [hidden]), kill=refuse)
    assert sweep.look()
    (line,) = sweep.left_behind()
    assert (line["pid"], line["rank"], line["refused"]) == (hidden.pid, 5, True)
    assert orphans.Sweep(sweep.traces).look()


def test_what_the_control_group_ends_is_counted_too(tmp_path: Path, hidden: Process) -> None:
    done: list[str] = []

    class Group(AttemptGroup):
        def pids(self) -> list[int]:
            return []

        def kill(self) -> None:
            done.append("killed")

    found = replace(traces(tmp_path, [hidden]), group=Group(tmp_path / "zerotools-1"))

    def find(known: orphans.Traces) -> list[Process]:
        return [] if done else orphans.find(known)

    sweep = orphans.Sweep(found, kill=lambda process, uid: None, find=find)
    assert sweep.look()
    assert sweep.found == {(hidden.pid, hidden.start_ticks)}
    assert not sweep.look()
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
        assert [p.pid for p in orphans.find(traces(tmp_path, []))] == [started.pid]
        started.kill()
