"""Jobs that wait for a time and for others, without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.daemon.queue.test_schedule_queued_jobs import cancel, queue_one
from zerotoolsd.interface.start_conditions import Dependency
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.check_start_conditions import WaitingConditions, why_it_waits
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.lifecycle import JobStatus, RetryPolicy
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.dependency_table import DependencyRow
from zerotoolsd.queue.write_rows import NewJob


class Waits:
    """Conditions over a store, at a time that tests set."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path)
        self.now = 1000.0
        self.guard = JobGuard(path, lambda job_id, why: None, lambda job_id, doing: None)
        self.begin_anew()

    def begin_anew(self) -> None:
        """As a daemon that starts."""
        transitions = StateChanger(self.store, RetryPolicy(), lambda: None)
        self.conditions = WaitingConditions(transitions, self.guard, lambda: self.now)

    def submit(self, begin: float | None = None, *after: Dependency) -> int:
        first = queue_one(self.store)
        new = NewJob(
            uid=0,
            name="waits",
            spec=first.spec,
            output_dir=None,
            default_output=Path("/nowhere"),
            idempotency_key=None,
            now=self.now,
            begin=begin,
            after=after,
        )
        cancel(self.store, first.id)
        (result,) = self.store.submit_all([new])
        assert not isinstance(result, Exception)
        return result[0].id

    def end(self, job_id: int, state: str) -> None:
        with self.store.change(self.store.job(job_id), JobStatus(state=state), "end", now=self.now):
            pass

    def state(self, job_id: int) -> str:
        self.conditions.settle(inf)
        return self.store.job(job_id).state


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[Waits]:
    found = Waits(tmp_path)
    with closing(found.store):
        yield found


def test_a_time_that_is_to_come_and_one_that_is_over(waits: Waits) -> None:
    early, late = waits.submit(1010.0), waits.submit(1020.0)
    assert waits.conditions.settle(inf) == 10.0
    waits.now = 1010.0
    assert waits.conditions.settle(inf) == 10.0
    assert (waits.state(early), waits.state(late)) == ("queued", "waiting")
    waits.begin_anew()
    assert waits.state(late) == "waiting"
    waits.now = 1e6  # the calendar was set, or the machine slept
    assert waits.state(late) == "queued"


@pytest.mark.parametrize(
    ("end", "ok", "any_"),
    [
        ("succeeded", "queued", "queued"),
        ("failed", "on_hold", "queued"),
        ("cancelled", "on_hold", "queued"),
        ("stopped", "on_hold", "queued"),
        ("waiting_retry", "waiting", "waiting"),
        ("held", "waiting", "waiting"),
        ("on_hold", "waiting", "waiting"),
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_how_the_other_ends(waits: Waits, end: str, ok: str, any_: str, anew: bool) -> None:
    other = queue_one(waits.store).id
    jobs = [
        waits.submit(None, Dependency(job_id=other)),
        waits.submit(None, Dependency(job_id=other, condition="any")),
        waits.submit(2000.0, Dependency(job_id=other, condition="any")),
    ]
    assert [waits.state(job_id) for job_id in jobs] == ["waiting"] * 3
    waits.end(other, end)
    if anew:
        waits.begin_anew()
    assert [waits.state(job_id) for job_id in jobs] == [ok, any_, "waiting"]


def test_how_a_job_ended_is_known_after_it_was_removed(waits: Waits) -> None:
    ended = []
    for state in ("succeeded", "failed"):
        other = queue_one(waits.store).id
        ended.append(waits.submit(None, Dependency(job_id=other)))
        waits.end(other, state)
        waits.store.remove(waits.store.job(other), 1.0, "to make room")
    assert [waits.state(job_id) for job_id in ended] == ["queued", "on_hold"]


def test_a_chain_waits_for_one_that_is_put_on_hold_in_it(waits: Waits) -> None:
    first = queue_one(waits.store).id
    second = waits.submit(None, Dependency(job_id=first))
    third = waits.submit(None, Dependency(job_id=second))
    waits.end(first, "failed")
    assert (waits.state(second), waits.state(third)) == ("on_hold", "waiting")
    cancel(waits.store, second)
    assert waits.state(third) == "on_hold"


def test_only_jobs_that_may_go_on_are_looked_at(waits: Waits) -> None:
    others = [queue_one(waits.store).id for _ in range(20)]
    jobs = [waits.submit(None, Dependency(job_id=other)) for other in others]
    waits.conditions.settle(inf)
    looked: list[int] = []
    waits.guard.touch = lambda job_id, doing: looked.append(job_id)
    waits.end(others[3], "succeeded")
    assert waits.state(jobs[3]) == "queued"
    assert looked == [jobs[3]]
    job = waits.store.job(jobs[3])
    assert replace(job.standing, reason=None) == JobStatus()


def test_of_many_jobs_that_one_waits_for_a_few_are_named() -> None:
    rows = [DependencyRow(on_id=n, condition="any", state="queued") for n in range(1, 1001)]
    said = why_it_waits(None, rows, now=0.0)
    assert said == (
        "waits for job 1 (queued) to end, and for job 2 (queued) to end, and for job 3 (queued) to "
        "end, and for 997 more jobs"
    )
    assert str(why_it_waits(None, rows[:4], now=0.0)).endswith("and for 1 more job")
