"""Supervisors that do not do their work: what is said, and what is done when."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.attempts.supervisor_watchdog import (
    EVERY,
    SILENT_SECONDS,
    ProcessAccess,
    SupervisorWatchdog,
)
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.procfs import Process, boot_id

TOKEN = "a" * 32
SUPERVISOR, KEEPER, RANK = 101, 100, 102
GRACE, KILL = 10.0, 5.0
LATE = GRACE + 3 * KILL + 100


def process(pid: int, state: str = "S") -> Process:
    parent = {RANK: SUPERVISOR, SUPERVISOR: KEEPER}.get(pid, 1)
    return Process(pid=pid, parent=parent, state=state, start_ticks=pid, rss_bytes=0, name="x")


def identity(pid: int) -> dict[str, int]:
    return {"pid": pid, "start_ticks": pid}


@contextmanager
def _unguarded(job_id: int, doing: str) -> Iterator[Callable[[], None]]:
    yield lambda: None


class Machine:
    """A supervisor, its keeper and a rank; signals are only noted."""

    def __init__(self, run: Path) -> None:
        self.there = {pid: process(pid) for pid in (SUPERVISOR, KEEPER, RANK)}
        self.sent: list[tuple[int, signal.Signals]] = []
        self.asked: float | None = None
        self.sign = 1.0
        self.ended: list[Mapping[str, Any]] = []
        values = dict.fromkeys(AttemptRow.__dataclass_fields__)
        names = {"job_id": 7, "number": 1, "token": TOKEN, "run_dir": str(run), "gpu_uuids": ()}
        self.attempt = AttemptRow(**{**values, **names})  # type: ignore[arg-type]
        record = {"token": TOKEN, "boot_id": boot_id(), "keeper": identity(KEEPER)}
        write_json(run / "run.json", {**record, **identity(SUPERVISOR)})
        guard: Callable[[int, str], AbstractContextManager[Callable[[], None]]] = _unguarded
        self.overseer = SupervisorWatchdog(
            lambda: [(self.attempt, self.asked)],
            lambda attempt, record: self.ended.append(record),
            guard,
            grace_seconds=GRACE,
            kill_seconds=KILL,
            hands=ProcessAccess(
                read=self.there.get,
                send=lambda pid, start, number, uid: not self.sent.append((pid, number)),  # type: ignore[func-returns-value]
                find=lambda traces: list(self.there.values()),
                sign=lambda run: self.sign,
                ranks=lambda run: (RANK,),
            ),
        )

    def look(self, now: float) -> str | None:
        for _ in range(EVERY):
            self.overseer.check(now)
        return self.overseer.silent.get(7)

    def becomes(self, pid: int, state: str | None) -> None:
        if state is None:
            del self.there[pid]
        else:
            self.there[pid] = self.there[pid]._replace(state=state)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_stopped_supervisor_is_said_and_left_alone(machine: Machine) -> None:
    machine.becomes(SUPERVISOR, "T")
    assert machine.look(0) == (
        "its supervisor, pid 101, is stopped: progress is not recorded and limits are not enforced "
        "until it continues (kill -CONT 101)"
    )
    machine.look(1e6)
    assert machine.sent == []
    machine.becomes(SUPERVISOR, "S")
    machine.sign = 2.0
    assert machine.look(1e6) is None


def test_one_whose_ranks_have_ended_is_woken_and_killed_where_it_stays_stopped(
    machine: Machine,
) -> None:
    machine.becomes(SUPERVISOR, "T")
    machine.becomes(RANK, "Z")
    machine.look(0)
    assert {*machine.sent} == {(SUPERVISOR, signal.SIGCONT)}
    machine.look(3 * KILL)
    assert {*machine.sent} == {(SUPERVISOR, signal.SIGCONT)}
    machine.look(LATE)
    assert machine.sent[-1] == (SUPERVISOR, signal.SIGKILL)


def test_one_that_goes_on_then_has_all_time_for_what_follows(machine: Machine) -> None:
    machine.becomes(SUPERVISOR, "T")
    machine.becomes(RANK, None)
    machine.look(0)
    machine.becomes(SUPERVISOR, "S")
    machine.look(1e6)
    assert {*machine.sent} == {(SUPERVISOR, signal.SIGCONT)}


def test_one_that_is_to_stop_is_woken_first(machine: Machine) -> None:
    machine.becomes(SUPERVISOR, "T")
    machine.becomes(KEEPER, "T")
    machine.asked = 0.0
    machine.overseer.check(0.5)
    assert machine.sent == [(SUPERVISOR, signal.SIGCONT), (KEEPER, signal.SIGCONT)]


def test_a_keeper_that_was_stopped_alone_sees_the_end(machine: Machine) -> None:
    machine.becomes(KEEPER, "T")
    machine.look(0)
    assert machine.sent == []
    machine.becomes(SUPERVISOR, "Z")
    machine.overseer.check(1)
    assert machine.sent == [(KEEPER, signal.SIGCONT)]


def test_what_does_not_end_the_attempt_is_killed_one_after_another_and_named(
    machine: Machine,
) -> None:
    machine.asked = 0.0
    machine.becomes(SUPERVISOR, "D")
    machine.look(GRACE + KILL)
    assert machine.sent == []
    machine.look(LATE)
    machine.look(LATE + 1)
    assert machine.sent == [(SUPERVISOR, signal.SIGKILL)]
    machine.look(LATE + 100)
    assert machine.sent[1:] == [(KEEPER, signal.SIGKILL)]
    machine.becomes(KEEPER, None)
    assert machine.ended == []
    machine.overseer.check(LATE + 200)
    (record,) = machine.ended
    assert [line["pid"] for line in record["unkillable"]] == [SUPERVISOR, RANK]
    assert "could not be killed" in record["cause"]


def test_a_supervisor_that_works_and_whose_ranks_are_gone_is_left_to_its_record(
    machine: Machine,
) -> None:
    machine.asked = 0.0
    machine.becomes(RANK, None)
    machine.look(LATE)
    assert machine.sent == []


def test_no_sign_of_life_is_said_whatever_the_clock_on_the_wall(machine: Machine) -> None:
    assert machine.look(1000) is None
    assert machine.look(1000 + SILENT_SECONDS - 1) is None
    said = machine.look(1000 + SILENT_SECONDS + 5)
    assert said == "its supervisor, pid 101, has given no sign of life for 65 s (state S)"
    machine.sign = -5.0
    assert machine.look(1000 + SILENT_SECONDS + 6) is None
