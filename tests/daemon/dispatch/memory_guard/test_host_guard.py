"""The guard over a host whose memory is only told of, and jobs that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatch.memory_guard.test_host_forecast import GIB, TOTAL
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.waiting import wait_async
from zerotoolsd.config.config_tables import PressureConfig
from zerotoolsd.dispatch.memory_guard.host_guard import PressureGuard
from zerotoolsd.dispatch.memory_guard.host_reading import HostReading
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.scheduling.declared_memory import HostNow

SAVES = "attempt=1:stop attempt=2:release exit=0"


@dataclass
class Host:
    """Memory that is set by hand, looked at each half second."""

    guard: PressureGuard
    free_gib: float = 40.0
    clock: float = 0.0
    readings: tuple[HostReading, ...] = ()
    """Of a control group."""

    def look(self, times: int = 12, rate: float = 0.0) -> None:
        """So many looks, between which `rate` GiB per second go."""
        for _ in range(times):
            self.clock += 0.5
            self.free_gib = max(0.0, self.free_gib - rate / 2)
            self.guard.look()


@asynccontextmanager
async def guarded(
    tmp_path: Path, most: str, held: dict[int, int]
) -> AsyncIterator[tuple[Running, Host]]:
    """`held` are GiB of jobs. The daemon's own loop looks on at nothing."""
    config = replace(CONFIG, pressure=PressureConfig(most="nothing"))
    async with running(tmp_path / "state", config=config) as it:
        engine = it.engine
        host = Host(engine.pressure)
        host.guard = engine.pressure = PressureGuard(
            PressureConfig(most=most),
            engine.pressure._asking,
            engine._running,
            lambda: HostNow(0, {job: size * GIB for job, size in held.items()}),
            expected=dict,
            wake=engine._wake.set,
            read=lambda: (*host.readings, HostReading(TOTAL, int(host.free_gib * GIB))),
            clock=lambda: host.clock,
        )
        yield it, host


async def start(it: Running, fake: str, priority: int = 0) -> JobView:
    spec = make_job(fake, ranks=1)
    job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
    await it.reach(job.id, "running")
    if priority:
        await it.service.set_priority(job.id, priority, uid=0)
    return job


async def trains(it: Running, job_id: int) -> None:
    async def stepped() -> bool:
        return (await it.service.job(job_id)).progress is not None

    await wait_async(stepped, f"a step of job {job_id}")


def test_no_job_starts_while_memory_runs_out_and_jobs_do_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            host.look(20, rate=3.0)
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            why = await it.waits(job.id)
            assert why.startswith("no job starts while the memory of the host runs out: 10.0 of")
            assert why.endswith("gone in about 3 s as it goes")
            host.free_gib = 50.0
            host.look(200)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_the_job_of_lowest_value_saves_and_goes_on_later(tmp_path: Path) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "save", held) as (it, host):
            high = await start(it, SAVES, priority=5)
            low = await start(it, SAVES)
            held |= {high.id: 20, low.id: 10}
            for job in (high, low):
                await trains(it, job.id)
            host.free_gib = 25.0
            host.look(20, rate=1.0)
            host.look(20)
            given = await it.reach(low.id, "queued")
            assert (await it.service.job(high.id)).state == "running"
            assert given.reason is not None
            assert "stops because the memory of the host runs out" in given.reason
            (row,) = it.engine.store.yields.of(low.id)
            assert (row.purpose, row.saved_step, row.steps_lost) == ("relieve", 7, 0)
            assert it.engine.store.job(low.id).standing.restarts_used == 0
            host.free_gib = 50.0
            host.look(200)
            await it.reach(low.id, "running")

    asyncio.run(story())


def test_one_that_does_not_save_in_time_is_ended_and_goes_on_later(tmp_path: Path) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "stop", held) as (it, host):
            job = await start(it, "steps=1 deaf hang")
            held[job.id] = 20
            await trains(it, job.id)
            host.free_gib = 25.0
            host.look(20, rate=1.0)  # asked
            assert (await it.service.job(job.id)).state == "yielding"
            host.look(12, rate=4.0)
            ended = await it.reach(job.id, "queued")
            assert it.engine.store.job(job.id).standing.restarts_used == 0
            assert ended.attempts[0].cause is not None

    asyncio.run(story())


def test_a_job_that_saves_for_another_reason_is_not_asked_again_and_may_be_ended(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        held: dict[int, int] = {}
        async with guarded(tmp_path, "stop", held) as (it, host):
            job = await start(it, "steps=1 deaf hang")
            held[job.id] = 20
            await trains(it, job.id)
            await it.service.pause(job.id, uid=0)
            host.free_gib = 25.0
            host.look(20, rate=1.0)
            assert (await it.service.job(job.id)).state == "pausing"
            host.look(12, rate=4.0)
            await it.reach(job.id, "paused")
            (row,) = it.engine.store.yields.of(job.id)
            assert row.purpose == "pause"

    asyncio.run(story())


def test_a_limit_of_the_control_group_is_looked_at_for_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            for step in range(12):
                host.readings = (HostReading(8 * GIB, (4 * GIB) - step * GIB // 4, of_limit=True),)
                host.look(1)
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            why = await it.waits(job.id)
            assert "1.2 of the 8.0 GiB of memory of the daemon's control group are left" in why
            host.readings = ()
            host.look(120)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_a_small_limit_that_is_hardly_used_lets_jobs_start_on_a_large_host(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, "wait", {}) as (it, host):
            host.readings = (HostReading(2 * GIB, int(1.9 * GIB), of_limit=True),)
            host.look(20)  # 1.9 GiB are a 33rd of what the host has
            job, _ = await it.service.submit(make_job("exit=0"), uid=0, idempotency_key=None)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())
