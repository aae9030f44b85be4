"""Jobs make room for one of higher priority: in a daemon whose ranks pretend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.queue.scheduling.deciding import LIMITS, gpus, lease, wants
from tests.daemon.service.test_answer_requests import ME
from tests.daemon.waiting import wait_async
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.config.config_tables import LimitsConfig, PreemptionConfig
from zerotoolsd.dispatch.preempt_for_priority import (
    PreemptionRules,
    choose_victims,
    seconds_to_next_check,
)
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.start_conditions import QueueTerms
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import DeclaredMemory
from zerotoolsd.queue.scheduling.pass_input import PassInput, RunningJob
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.user_quota import UserUsage, UserUse
from zerotoolsd.queue.tables.preemption_table import PREEMPT
from zerotoolsd.service.explain_job import yields_about
from zerotoolsd.users.user_limits import UserLimits

AT_ONCE = PreemptionConfig(enabled=True, after_seconds=0)
SAVES = "attempt=1:stop attempt=2:release exit=0"


def config(preemption: PreemptionConfig, cpu_ranks: int = 1) -> Any:
    return replace(CONFIG, limits=LimitsConfig(cpu_ranks=cpu_ranks), preemption=preemption)


async def submit(it: Running, fake: str, priority: int = 0, **changes: Any) -> JobView:
    changes = changes or {"ranks": 1}
    job, _ = await it.service.submit(
        make_job(fake, **changes),
        uid=ME,
        idempotency_key=None,
        terms=QueueTerms(priority=priority),
    )
    return job


def test_a_job_saves_for_one_of_higher_priority_and_goes_on_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 release exit=0", priority=3)
            await it.reach(high.id, "running")
            waits = await it.reach(low.id, "queued")
            assert str(waits.reason).startswith(f"stops for job {high.id} of priority 3; ")
            (row,) = it.engine.store.yields.of(low.id)
            assert (row.purpose, row.for_job, row.steps_lost) == (PREEMPT, high.id, 0)

            async def first_step() -> float | None:
                return it.engine.store.yields.of(low.id)[0].first_step

            when = await wait_async(first_step, "the first step of the other job")
            assert when is not None
            assert when >= row.asked
            for job_id in (low.id, high.id):
                (room,) = (await it.service.explain(job_id))["room"]
                assert (room["job_id"], room["for_job"]) == (low.id, high.id)
                assert (room["first_step"], room["steps_lost"]) == (when, 0)
            it.release(high.id)
            await it.reach(high.id, "succeeded")
            await it.reach(low.id, "running")
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")
            assert it.engine.store.job(low.id).standing.restarts_used == 0

    asyncio.run(story())


def test_the_first_step_is_noted_of_a_job_that_is_over_soon_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 exit=0", priority=3)
            await it.reach(high.id, "succeeded")

            async def noted() -> bool:
                return it.engine.store.yields.of(low.id)[0].first_step is not None

            await wait_async(noted, "the first step of the other job")
            await it.reach(low.id, "running")
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")

    asyncio.run(story())


def test_gpus_are_given_back_by_as_many_as_it_needs_and_kept_for_it(tmp_path: Path) -> None:
    train = {"steps": 1, "batch_size": 6}
    gpu: dict[str, Any] = {"device": "cuda", "ranks": None, "train": train}

    async def story() -> None:
        probe = FakeProbe(tuple(fake_gpu(index, used_gib=0) for index in range(3)))
        async with running(tmp_path / "state", probe, config(AT_ONCE)) as it:
            fake = "attempt=1:deaf attempt=1:release stop"
            old = [await submit(it, fake, **gpu, gpus=1) for _ in range(3)]
            for job in old:
                await it.waits_for_release(job.id)
            behind = await submit(it, "exit=0", priority=1, **gpu, gpus=3)
            await it.waits(behind.id)  # for which all three give way
            high = await submit(it, "release exit=0", priority=5, **gpu, gpus=2)
            for job in old:
                it.release(job.id)
            ran = await it.reach(high.id, "running")
            assert len(ran.attempts[0].gpu_uuids) == 2
            it.release(high.id)
            await it.reach(high.id, "succeeded")
            ended = await it.reach(behind.id, "succeeded")
            assert len(ended.attempts) == 1
            for job in old:
                assert (await it.service.job(job.id)).attempts[0].number == 1
                await it.service.cancel(job.id, uid=ME)

    asyncio.run(story())


def test_an_elastic_job_goes_on_at_once_with_what_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE, cpu_ranks=4)) as it:
            sizes = {"ranks": {"min": 1, "max": 4}}
            low = await submit(it, "attempt=1:stop attempt=2:release exit=0", **sizes)
            assert (await it.reach(low.id, "running")).world_size == 4
            high = await submit(it, "release exit=0", priority=3, ranks=2)
            await it.reach(high.id, "running")
            went_on = await it.reach(low.id, "running")
            assert [each.world_size for each in went_on.attempts] == [4, 2]
            it.release(high.id)
            it.release(low.id, attempt=2)
            await it.reach(low.id, "succeeded")

    asyncio.run(story())


def test_nobody_is_asked_unless_the_administrator_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(PreemptionConfig())) as it:
            low = await submit(it, "release exit=0")
            await it.reach(low.id, "running")
            high = await submit(it, "exit=0", priority=3)
            await it.waits(high.id)
            assert (await it.service.job(low.id)).state == "running"
            it.release(low.id)
            await it.reach(high.id, "succeeded")
            assert it.engine.store.yields.of(low.id) == []

    asyncio.run(story())


def test_the_job_that_asked_is_cancelled_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, "attempt=1:deaf attempt=1:release attempt=1:stop exit=0")
            await it.waits_for_release(low.id)
            high = await submit(it, "exit=0", priority=3)
            await it.reach(low.id, "yielding")
            await it.service.cancel(high.id, uid=ME)
            it.release(low.id)
            ended = await it.reach(low.id, "succeeded")
            assert len(ended.attempts) == 2
            assert (await it.service.job(high.id)).state == "cancelled"

    asyncio.run(story())


def test_what_another_user_s_job_has_made_is_not_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state", config=config(AT_ONCE)) as it:
            low = await submit(it, SAVES)
            await it.reach(low.id, "running")
            high = await submit(it, "steps=2 release exit=0", priority=3)
            await it.reach(high.id, "running")
            store = it.engine.store
            (own,) = yields_about(store, store.job(high.id))
            assert (own.steps_lost, own.outcome) == (0, "stopped")
            (others,) = yields_about(store, replace(store.job(high.id), uid=ME + 1))
            assert (others.job_id, others.ended) == (low.id, own.ended)
            assert (others.saved_step, others.steps_lost, others.outcome) == (None, None, None)
            for job in (low, high):
                await it.service.cancel(job.id, uid=ME)
            it.release(high.id)
            await it.reach(low.id, "cancelled")

    asyncio.run(story())


RULES = PreemptionRules(after_seconds=60)
GIB = 2**30


def urgent(job_id: int, gpus: int, priority: int = 3, uid: int = 0) -> Request:
    return replace(wants(job_id, gpus), priority=priority, uid=uid)


def job(job_id: int, priority: int = 0, ran: float = 1000.0, **changes: object) -> RunningJob:
    return replace(RunningJob(job_id=job_id, priority=priority, ran_seconds=ran), **changes)  # type: ignore[arg-type]


def machine(snapshot: Snapshot | None, leases: Sequence[Lease] = (), used: int = 0) -> PassInput:
    return PassInput(
        now=100.0, snapshot=snapshot, leases=leases, cpu_ranks_used=used, limits=LIMITS
    )


def asked(
    pending: Sequence[Request],
    now: PassInput,
    running: Sequence[RunningJob],
    rules: PreemptionRules = RULES,
    unsaved: Sequence[int] = (),
) -> dict[int, int]:
    """For which job each makes room."""
    found = choose_victims(
        PendingQueue(pending), now, running, rules, lambda job_id: job_id not in unsaved
    )
    return {each.job_id: each.for_job for each in found}


FOUR = (lease(0, 1), lease(1, 1), lease(2, 2), lease(3, 3))
"""Of four GPUs: two of job 1, one each of jobs 2 and 3."""
THREE = (job(1, 0, 18000), job(2, 0, 600), job(3, -5))


def test_the_lowest_priority_first_then_what_ran_for_the_shortest_time() -> None:
    now = machine(gpus(4), FOUR)
    assert asked([urgent(4, 1)], now, THREE) == {3: 4}
    assert asked([urgent(4, 2)], now, THREE) == {3: 4, 2: 4}


def test_who_is_not_needed_after_all_is_left_alone() -> None:
    now = machine(gpus(4), FOUR)
    assert asked([urgent(4, 3)], now, THREE) == {1: 4, 3: 4}
    assert asked([urgent(4, 4)], now, THREE) == {1: 4, 2: 4, 3: 4}


def test_an_elastic_job_that_can_go_on_with_less_goes_first() -> None:
    now = machine(gpus(4), FOUR)
    shrinks = (replace(THREE[0], can_shrink=True), THREE[1])
    assert asked([urgent(4, 1)], now, shrinks) == {1: 4}


def test_nobody_stops_for_a_job_that_would_not_start_then() -> None:
    now = machine(gpus(4), FOUR)
    assert asked([urgent(4, 5)], now, THREE) == {}  # more than there are
    held = (*FOUR[:3], lease(3, 3, held_by="pid 7"))
    assert asked([urgent(4, 4)], machine(gpus(4), held), THREE) == {}
    limit = UserUsage(
        limits_of=lambda uid: UserLimits(max_gpus=2), used={5: UserUse(running=1, gpus=1)}
    )
    assert asked([urgent(4, 2, uid=5)], replace(now, users=limit), THREE) == {}
    assert asked([urgent(4, 1, uid=5)], replace(now, users=limit), THREE) == {3: 4}
    over = replace(now, passed_over={4: "it loads after others"})
    assert asked([urgent(4, 1)], over, THREE) == {}


def test_a_stranger_on_a_gpu_stays_there_when_the_job_is_gone() -> None:
    snapshot = gpus(1)
    busy = replace(snapshot.gpus[0], memory_used_bytes=20 * GIB)
    now = machine(replace(snapshot, gpus=(busy,)), [lease(0, 1)])
    uuid = busy.uuid or ""
    assert asked([urgent(4, 1)], now, [job(1, gpu_use={uuid: 5 * GIB})]) == {}
    assert asked([urgent(4, 1)], now, [job(1, gpu_use={uuid: 20 * GIB})]) == {1: 4}
    assert asked([urgent(4, 1)], now, [job(1)]) == {1: 4}  # nobody knows: it is taken for its own


def test_only_a_lower_priority_that_has_run_and_saves_makes_room() -> None:
    now = machine(gpus(1), [lease(0, 1)])
    assert asked([urgent(4, 1)], now, [job(1, priority=3)]) == {}
    young = [job(1, ran=59.0)]
    assert asked([urgent(4, 1)], now, young) == {}
    assert seconds_to_next_check(young, RULES) == 1.0
    assert asked([urgent(4, 1)], now, [job(1)], unsaved=[1]) == {}
    own = PreemptionRules(after_seconds=60, own_only=True)
    assert asked([urgent(4, 1, uid=7)], now, [job(1, uid=8)], own) == {}
    assert asked([urgent(4, 1, uid=7)], now, [job(1, uid=7)], own) == {1: 4}


def test_who_was_asked_already_counts_as_gone() -> None:
    now = machine(gpus(4), FOUR)
    first = [THREE[0], THREE[1], replace(THREE[2], leaves=True)]
    assert asked([urgent(4, 1)], now, first) == {}
    assert asked([urgent(4, 1), urgent(5, 1)], now, first) == {2: 5}


def test_what_others_will_have_first_is_not_counted_on() -> None:
    """Job 5 comes before job 6, of the same priority, and nobody makes room for it."""
    now = machine(gpus(2), [lease(0, 1), lease(1, 2)])
    pending = [replace(wants(5, 2), priority=3), urgent(6, 1)]
    assert asked(pending, now, [job(1), job(2, priority=5)]) == {}


def test_ranks_of_the_cpu_and_shares_of_gpus_alike() -> None:
    cpu = Request(job_id=4, need=ResourceNeed(world_size=3, gpus=None), priority=1)
    running = [job(1, cpu_ranks=2, ran=70), job(2, cpu_ranks=6)]
    assert asked([cpu], machine(None, used=8), running) == {2: 4}
    share = ResourceNeed(world_size=1, gpus=1, gpu_bytes=10 * GIB)
    parts = [replace(lease(0, each), bytes=40 * GIB) for each in (1, 2)]
    now = replace(machine(gpus(1), parts), memory=DeclaredMemory(context=GIB))
    wanted = Request(job_id=4, need=share, priority=1)
    assert asked([wanted], now, [job(1), job(2, ran=5000)]) == {1: 4}


def test_a_long_line_of_others_costs_little() -> None:
    """The first of each need and user is looked at, and no more before it than could start."""
    looked: list[int] = []
    pending = PendingQueue(
        [*(urgent(each, 8) for each in range(100, 2100)), urgent(9, 1, priority=2)]
    )
    now = machine(gpus(4), FOUR)
    found = choose_victims(pending, now, THREE, RULES, lambda job_id: not looked.append(job_id))
    assert [each.for_job for each in found] == [9]
    assert len(looked) == 2 * len(THREE)  # for the first of the 2,000, and for job 9


@given(
    priorities=st.lists(st.integers(-3, 3), min_size=4, max_size=4),
    size=st.integers(1, 4),
    mine=st.integers(-2, 4),
)
def test_nobody_who_is_asked_could_be_spared(priorities: list[int], size: int, mine: int) -> None:
    leases = [lease(index, index + 1) for index in range(4)]
    running = [job(index + 1, priority) for index, priority in enumerate(priorities)]
    now, pending = machine(gpus(4), leases), [urgent(9, size, mine)]
    found = asked(pending, now, running)
    lower = [each for each in running if each.priority < mine]
    assert len(found) == (size if len(lower) >= size else 0)
    assert all(each.priority < mine for each in running if each.job_id in found)


def test_nobody_stops_for_a_process_that_is_only_watched() -> None:
    watched = Request(job_id=9, need=ResourceNeed(world_size=0, gpus=None), priority=20)
    assert not RULES.allow(job(1), watched)
    assert RULES.allow(job(1), replace(watched, need=ResourceNeed(world_size=1, gpus=None)))
