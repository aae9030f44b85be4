"""Jobs that share a GPU: as its memory runs out, one saves or is ended, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatch.test_forecast_memory_exhaustion import GIB
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.queue.scheduling.deciding import seen
from tests.daemon.waiting import wait_async
from zerotools.sensors.snapshot import Gpu, GpuProcess, Snapshot
from zerotoolsd.config.config_tables import PressureConfig
from zerotoolsd.dispatch.gpu_memory_guard import GpuMemoryGuard, GpuPromises
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.queue.rows import AttemptRow, Lease
from zerotoolsd.resources.check_gpu_use_of_jobs import MeasuredUse, Owner

GPU_SAVES = "attempt=1:stop attempt=2:release exit=0"
UUID = "GPU-fake-0"


@dataclass
class SharedGpu:
    """A GPU of 80 GiB, whose owners are told of by hand; looked at once a second."""

    guard: GpuMemoryGuard
    held: dict[int, float] = field(default_factory=dict)
    """GiB by job."""
    strangers: float = 0.0
    known: bool = True
    clock: float = 0.0
    gpus: tuple[Gpu, ...] | None = None

    def snapshot(self, error: str | None = None) -> Snapshot:
        used = sum(self.held.values()) + self.strangers
        listed = [GpuProcess(job, int(size * GIB)) for job, size in self.held.items()]
        listed.append(GpuProcess(999, int(self.strangers * GIB)))
        gpus = self.gpus or (fake_gpu(0, used_gib=used, processes=listed),)
        return seen(*gpus, error=error)

    def measure(self, gpus: Sequence[Gpu], live: Sequence[AttemptRow]) -> MeasuredUse:
        if not self.known:
            return MeasuredUse()
        numbers = {attempt.job_id: attempt.number for attempt in live}
        of_jobs: dict[Owner, dict[str, int]] = {
            (job, numbers[job]): {UUID: int(size * GIB)}
            for job, size in self.held.items()
            if job in numbers
        }
        return MeasuredUse(of_jobs, {gpu.uuid or "": 0 for gpu in gpus})

    def look(self, times: int = 1, strangers: float = 0.0, **rates: float) -> None:
        """So many looks, between which jobs (`job_1=2.0`) and strangers take so many GiB."""
        for _ in range(times):
            self.clock += 1.0
            self.strangers += strangers
            for name, rate in rates.items():
                self.held[int(name.removeprefix("job_"))] += rate
            self.guard.check(self.snapshot())


@asynccontextmanager
async def gpu_guarded(
    tmp_path: Path, most: str, expected: int = 0
) -> AsyncIterator[tuple[Running, SharedGpu]]:
    """The daemon's own loop looks on at nothing."""
    config = replace(CONFIG, pressure=PressureConfig(most="nothing"))
    probe = FakeProbe([fake_gpu(0, used_gib=0)])
    async with running(tmp_path / "state", probe, config) as it:
        engine = it.engine
        gpu = SharedGpu(engine.gpu_pressure)
        gpu.guard = engine.gpu_pressure = GpuMemoryGuard(
            PressureConfig(most=most),
            engine.machine,
            engine.gpu_pressure._asking,
            engine._running,
            GpuPromises(GIB // 2, lambda job_id: expected, lambda gpu: GIB // 2),
            wake=engine._wake.set,
            measured=gpu.measure,
            clock=lambda: gpu.clock,
        )
        yield it, gpu


async def start_on_gpu(
    it: Running, gib: int | None, fake: str = GPU_SAVES, priority: int = 0
) -> JobView:
    memory = {} if gib is None else {"per_gpu": f"{gib}GiB"}
    spec = make_job(fake, device="cuda", gpus=1, ranks=None, memory=memory)
    job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
    await it.reach(job.id, "running")
    if priority:
        await it.service.set_priority(job.id, priority, uid=0)

    async def stepped() -> bool:
        return (await it.service.job(job.id)).progress is not None

    await wait_async(stepped, f"a step of job {job.id}")
    return job


def test_nothing_more_is_placed_on_a_gpu_while_its_memory_runs_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "wait") as (it, gpu):
            leaks, beside = await start_on_gpu(it, 10), await start_on_gpu(it, 20)
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.look(5)
            gpu.look(20, job_1=1.5)
            job, _ = await it.service.submit(
                make_job("exit=0", device="cuda", gpus=1, ranks=None, memory={"per_gpu": "1GiB"}),
                uid=0,
                idempotency_key=None,
            )
            why = await it.waits(job.id)
            assert (
                "0 of 1 GPUs have that much free: GPU 0: gets no more jobs while its memory runs "
                "out: it has 20.0 of its 80.0 GiB free; its jobs still need 0.5 GiB; the "
                "free memory is used up in about 13 s at this rate" in why
            )
            assert (await it.service.job(leaks.id)).state == "running"
            gpu.held[leaks.id] = 10.0
            gpu.look(60)
            await it.reach(job.id, "succeeded")

    asyncio.run(story())


def test_the_job_that_leaks_saves_and_makes_room_though_its_value_is_higher(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "save") as (it, gpu):
            leaks, beside = await start_on_gpu(it, 10, priority=5), await start_on_gpu(it, 20)
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.look(5)
            gpu.look(26, job_1=1.5)
            given = await it.reach(leaks.id, "queued")
            assert given.reason is not None
            assert "stops because the memory of GPU 0 runs out: the job holds" in given.reason
            assert "more than it declared" in given.reason
            (row,) = it.engine.store.yields.of(leaks.id)
            assert (row.purpose, row.saved_step, row.steps_lost) == ("relieve_gpu", 7, 0)
            assert it.engine.store.job(leaks.id).standing.restarts_used == 0
            assert (await it.service.job(beside.id)).state == "running"

    asyncio.run(story())


def test_one_that_does_not_save_in_time_is_ended_and_gets_gpus_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "stop") as (it, gpu):
            leaks = await start_on_gpu(
                it, 10, "attempt=1:steps=1 deaf hang attempt=2:steps=1 attempt=2:release exit=0"
            )
            beside = await start_on_gpu(it, 20, "steps=1 release exit=0")
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.look(5)
            gpu.look(31, job_1=1.5)
            await it.reach(leaks.id, "queued")
            assert "needs 1 GPU: 0 of 1 free: GPU 0" in await it.waits(leaks.id)
            del gpu.held[leaks.id]
            gpu.look(60)
            it.release(beside.id)
            await it.reach(leaks.id, "running")
            assert [lease.bytes for lease in it.engine.store.leases()] == [None]

    asyncio.run(story())


def test_a_job_alone_that_fills_its_gpu_is_left_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "stop", expected=10 * GIB) as (it, gpu):
            job = await start_on_gpu(it, None)
            gpu.held[job.id] = 10.0
            gpu.look(5)
            gpu.look(35, job_1=2.0)
            assert (await it.service.job(job.id)).state == "running"
            assert gpu.guard.closed == {}

    asyncio.run(story())


def test_beside_strangers_a_job_that_was_promised_more_makes_room(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "stop", expected=40 * GIB) as (it, gpu):
            job = await start_on_gpu(it, None)
            gpu.held[job.id], gpu.strangers = 20.0, 1.0
            gpu.look(10)
            gpu.look(90, strangers=0.5)

            async def has_stopped() -> bool:  # it starts again at once: the GPU has room now
                return it.engine.store.attempts(job.id)[0].ended is not None

            await wait_async(has_stopped, "the first attempt to stop")

    asyncio.run(story())


def test_numbers_that_are_not_of_now_are_not_looked_at(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "stop") as (it, gpu):
            leaks, beside = await start_on_gpu(it, 10), await start_on_gpu(it, 20)
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.look(5)
            for n in range(40):
                gpu.clock += 1.0
                gpu.held[leaks.id] = 10.0 + n
                gpu.guard.check(gpu.snapshot(error="the driver does not answer"))
                gpu.guard.check(replace(gpu.snapshot(), gpus_silent=True))
            assert gpu.guard.closed == {}
            same = gpu.snapshot()
            for _ in range(40):
                gpu.clock += 1.0
                gpu.guard.check(same)
            assert (await it.service.job(leaks.id)).state == "running"

    asyncio.run(story())


@pytest.mark.parametrize(
    "gpus",
    [
        (fake_gpu(1),),
        (fake_gpu(0, error="lost"),),
        (fake_gpu(0, mig_instances=["MIG-1"]),),
        (replace(fake_gpu(0, unmeasured="no memory"), memory_used_bytes=None),),
    ],
    ids=["it is gone", "an error", "MIG", "unmeasured"],
)
def test_a_gpu_of_which_nothing_is_known_is_forgotten(
    tmp_path: Path, gpus: tuple[Gpu, ...]
) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "wait") as (it, gpu):
            leaks, beside = await start_on_gpu(it, 10), await start_on_gpu(it, 20)
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.look(5)
            gpu.look(22, job_1=1.5)
            assert gpu.guard.closed.keys() == {UUID}
            gpu.gpus = gpus
            gpu.look(1)
            assert gpu.guard.closed == {}

    asyncio.run(story())


def test_where_the_driver_does_not_say_who_holds_what_nobody_is_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with gpu_guarded(tmp_path, "stop") as (it, gpu):
            leaks, beside = await start_on_gpu(it, 10), await start_on_gpu(it, 20)
            gpu.held |= {leaks.id: 10.0, beside.id: 20.0}
            gpu.known = False
            gpu.look(45, job_1=1.0)
            assert (await it.service.job(leaks.id)).state == "running"
            assert (await it.service.job(beside.id)).state == "running"

    asyncio.run(story())


def test_a_share_is_promised_with_its_context_and_a_whole_gpu_as_it_is_used() -> None:
    promises = GpuPromises(GIB, lambda job_id: 30 * GIB)
    share = Lease(gpu_uuid=UUID, job_id=1, attempt=1, bytes=5 * GIB)
    assert promises.of(share, 9 * GIB) == 6 * GIB
    whole = replace(share, bytes=None)
    assert promises.of(whole, 9 * GIB) == 30 * GIB
    assert promises.of(whole, 40 * GIB) == 40 * GIB
