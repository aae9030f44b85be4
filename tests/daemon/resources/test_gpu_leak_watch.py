"""What is left on GPUs that are only told of, after attempts that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.queue.scheduling.deciding import seen
from tests.daemon.waiting import wait_async
from zerotools.sensors.snapshot import Gpu, GpuProcess
from zerotoolsd.queue.rows import Lease
from zerotoolsd.resources.gpu_leak_watch import LeakWatch
from zerotoolsd.resources.leaked_gpu_memory import LeftProcess, Suspects

GIB = 2**30
UUID = "GPU-fake-0"
PYTHON = LeftProcess(4711, "python", 61234)


@dataclass
class Left:
    """What is there, told by hand: looked at every second."""

    it: Running
    watch: LeakWatch
    clock: float = 0.0
    who: Suspects = field(default_factory=Suspects)
    asked: int = 0
    announced: int = 0
    trouble: Exception | None = None

    async def ask(self, seconds: float, what: object, *arguments: object) -> dict[str, Any]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self.who.to_json()

    def announce(self) -> None:
        self.announced += 1

    async def look(self, seconds: int, *gpus: Gpu, **changes: Any) -> None:
        """So long, at these GPUs."""
        for _ in range(seconds):
            self.clock += 1.0
            await self.watch.check(replace(seen(*gpus), **changes))

    @property
    def said(self) -> list[str | None]:
        events = self.it.engine.store.events(0)
        return [event.why for event in events if event.kind == "gpu_residue"]

    @property
    def leases(self) -> list[Lease]:
        return self.it.engine.store.leases()


def gpu(used: float, *processes: tuple[int, float | None], index: int = 0) -> Gpu:
    listed = [GpuProcess(pid, None if size is None else int(size * GIB)) for pid, size in processes]
    return fake_gpu(index, used_gib=used, processes=listed)


def over(left: Left) -> Left:
    """The same, over a watch of its own that knows nothing yet."""
    engine = left.it.engine
    left.watch = LeakWatch(
        store=engine.store,
        machine=engine.machine,
        guard=engine._guard,
        live=engine._running,
        limit=lambda gpu: GIB // 2,
        announce=left.announce,
        ask=left.ask,
        clock=lambda: left.clock,
    )
    return left


@asynccontextmanager
async def after_a_job(tmp_path: Path, baseline_gib: float = 0.0) -> AsyncIterator[Left]:
    """Job 1 has had GPU 0, on which so much was in use before, and is over."""
    probe = FakeProbe([fake_gpu(0, used_gib=baseline_gib)])
    async with running(tmp_path / "state", probe) as it:
        spec = make_job("exit=0", device="cuda", gpus=1, ranks=None)
        job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
        await it.reach(job.id, "succeeded")
        probe.gpus = (fake_gpu(0, used_gib=baseline_gib),)
        left = over(Left(it, it.engine.residue))
        left.watch.add_ended(it.engine.store.attempts(job.id)[0])
        yield left


Story = Callable[[Left], Coroutine[Any, Any, None]]


def tell(tmp_path: Path, story: Story, **options: Any) -> None:
    async def whole() -> None:
        async with after_a_job(tmp_path, **options) as left:
            await story(left)

    asyncio.run(whole())


def test_a_gpu_that_is_free_is_looked_at_once(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(1, gpu(60.0))
        assert left.asked == 0
        await left.look(10, gpu(0.4))
        await left.look(60, gpu(60.0))  # of somebody who came later
        assert (left.said, left.leases, left.asked) == ([], [], 0)

    tell(tmp_path, story)


def test_what_a_process_of_the_job_still_holds_keeps_the_gpu_until_it_ends(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        left.who = Suspects({4711: PYTHON})
        await left.look(7, gpu(12.3, (4711, 12.3)))
        assert left.leases == []  # the driver takes a while to free what a process had
        await left.look(1, gpu(12.3, (4711, 12.3)))
        held = "pid 4711 (python) of uid 61234 with 12.3 GiB (to end it: kill 4711)"
        (lease,) = left.leases
        assert (lease.gpu_uuid, lease.job_id, lease.held_by) == (UUID, 1, held)
        assert left.said == [f"GPU 0 gets no job after attempt 1: it is in use by {held}"]
        await left.look(60, gpu(12.3, (4711, 12.3)))
        assert len(left.said) == 1
        await left.look(6, gpu(5.0, (4711, 5.0)))
        assert len(left.said) == 2
        await left.look(6, gpu(0.1))
        assert (left.leases, left.announced) == ([], 3)

    tell(tmp_path, story)


def test_what_no_process_holds_was_left_by_the_first_that_left_it(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(8, gpu(12.3))
        (attempt,) = left.it.engine.store.attempts(1)
        left.watch.add_ended(replace(attempt, number=2))
        await left.look(20, gpu(12.3))
        assert [(lease.job_id, lease.attempt) for lease in left.leases] == [(1, 1)]
        assert len(left.said) == 1
        await left.look(6, gpu(0.1))
        assert left.leases == []

    tell(tmp_path, story)


def test_memory_that_the_driver_frees_late_is_not_left(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(6, gpu(40.0))
        await left.look(60, gpu(0.1))
        assert (left.said, left.leases) == ([], [])

    tell(tmp_path, story)


def test_memory_that_no_process_holds_keeps_the_gpu_too(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(8, gpu(12.3))
        (lease,) = left.leases
        assert lease.held_by is not None
        assert lease.held_by.startswith("12.3 GiB of memory that no visible process holds")
        await left.look(10, gpu(20.0, (9, 7.7)))  # a stranger begins beside it
        assert len(left.leases) == 1
        await left.look(10, gpu(7.8, (9, 7.7)))  # it is freed, and the stranger is there
        assert left.leases == []

    tell(tmp_path, story)


def test_what_the_driver_had_before_keeps_nothing(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        attempt = replace(left.watch._checks.popitem()[1].attempt, gpu_baseline={UUID: 3 * GIB})
        left.watch.add_ended(attempt)
        await left.look(70, gpu(3.1))
        assert (left.said, left.leases) == ([], [])
        left.watch.add_ended(attempt)
        await left.look(8, gpu(3.5))
        assert len(left.leases) == 1

    tell(tmp_path, story)


def test_an_attempt_notes_what_no_process_held_when_it_began(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        (attempt,) = left.it.engine.store.attempts(1)
        assert attempt.gpu_baseline == {UUID: int(0.4 * GIB)}

    tell(tmp_path, story, baseline_gib=0.4)


def test_strangers_and_other_jobs_that_come_meanwhile_keep_nothing(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(70, gpu(30.2, (9, 20.0), (10, 10.0)))
        assert (left.said, left.leases) == ([], [])

    tell(tmp_path, story)


def test_what_may_be_managed_memory_of_those_that_are_there_keeps_nothing(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(70, gpu(30.0, (1, 10.0)))  # pid 1 is there to be seen
        assert (left.said, left.leases) == ([], [])
        await left.look(70, gpu(30.0))  # it is looked at no more
        assert left.leases == []

    tell(tmp_path, story)


def test_what_the_next_job_holds_keeps_nothing_though_nvml_lists_nobody(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        spec = make_job("release exit=0", device="cuda", gpus=1, ranks=None)
        job, _ = await left.it.service.submit(spec, uid=0, idempotency_key=None)
        await left.it.reach(job.id, "running")
        await left.look(70, gpu(30.0))
        assert (left.said, [lease.job_id for lease in left.leases]) == ([], [job.id])
        left.it.release(job.id)
        await left.it.reach(job.id, "succeeded")

    tell(tmp_path, story)


def test_a_pid_that_cannot_be_seen_from_here_is_said_and_keeps_nothing(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(70, gpu(30.0, (2**22 + 5, 10.0)))
        assert left.leases == []
        assert left.said == [
            "GPU 0 has 30.0 GiB in use after attempt 1, by pid 4194309, which cannot be seen "
            "from here (another container?): its owner is not known"
        ]

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        ((gpu(12.3),), {"gpus_error": "NVML does not answer", "gpus_silent": True}),
        ((gpu(12.3),), {"gpus_error": "NVML does not answer"}),
        ((), {"gpus_error": "no driver"}),
        ((gpu(12.3, index=1),), {}),
        ((replace(gpu(12.3), memory_used_bytes=None, unmeasured="no memory"),), {}),
        ((replace(gpu(12.3), mig_instances=("MIG-1",), error="MIG"),), {}),
    ],
    ids=["silent", "old numbers", "no driver", "the GPU is gone", "unmeasured", "MIG"],
)
def test_what_is_not_seen_now_keeps_nothing(
    tmp_path: Path, gpus: tuple[Gpu, ...], changes: dict[str, Any]
) -> None:
    async def story(left: Left) -> None:
        await left.look(70, *gpus, **changes)
        assert (left.said, left.leases) == ([], [])

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        ((gpu(0.0),), {"gpus_error": "NVML does not answer", "gpus_silent": True}),
        ((gpu(0.0),), {"gpus_error": "NVML does not answer"}),
        ((), {"gpus_error": "no driver"}),
        ((gpu(0.0, index=1),), {}),
        ((replace(gpu(0.0), error="the GPU is lost"),), {}),
    ],
)
def test_a_gpu_that_is_kept_is_not_released_by_numbers_that_are_not_of_now(
    tmp_path: Path, gpus: tuple[Gpu, ...], changes: dict[str, Any]
) -> None:
    async def story(left: Left) -> None:
        await left.look(8, gpu(12.3))
        await left.look(30, *gpus, **changes)
        assert len(left.leases) == 1
        await left.look(6, gpu(0.1))
        assert left.leases == []

    tell(tmp_path, story)


@pytest.mark.parametrize("trouble", [TimeoutError(), OSError("no"), RuntimeError("odd")])
def test_where_proc_does_not_answer_it_is_asked_again(tmp_path: Path, trouble: Exception) -> None:
    async def story(left: Left) -> None:
        left.trouble = trouble
        await left.look(20, gpu(12.3))
        assert (left.said, left.leases) == ([], [])
        left.trouble = None
        await left.look(20, gpu(12.3))
        assert len(left.leases) == 1
        left.trouble = trouble
        await left.look(20, gpu(12.3))
        assert len(left.leases) == 1
        await left.look(6, gpu(0.1))
        assert left.leases == []

    tell(tmp_path, story)


def test_another_daemon_goes_on_with_what_is_kept_and_says_nothing_twice(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(8, gpu(12.3))
        later = over(left)
        for lease in left.leases:
            later.watch.settle(lease)
        await later.look(20, gpu(12.3))
        assert (len(left.leases), len(left.said)) == (1, 1)
        await later.look(6, gpu(0.1))
        assert left.leases == []

    tell(tmp_path, story)


def test_a_restart_of_the_machine_frees_what_is_kept(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(8, gpu(12.3))
        (kept,) = left.watch._checks.values()
        kept.attempt = replace(kept.attempt, boot_id="an earlier one")
        await left.look(6)  # the GPU is not even there
        assert left.leases == []

    tell(tmp_path, story)


def test_ends_that_an_earlier_daemon_saw_last_are_looked_at_again(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        over(left).watch.add_recently_ended()
        await left.look(8, gpu(12.3))
        assert len(left.leases) == 1

    tell(tmp_path, story)


def test_a_job_that_was_removed_meanwhile_keeps_nothing(tmp_path: Path) -> None:
    async def story(left: Left) -> None:
        await left.look(4, gpu(12.3))
        store = left.it.engine.store
        store.remove(store.job(1), 9.0, "cleaned")
        await left.look(60, gpu(12.3))
        assert left.leases == []

    tell(tmp_path, story)


def test_the_loop_looks_by_itself_and_a_job_that_waits_is_told(tmp_path: Path) -> None:
    """With the engine's own watch, whose clock is told by hand."""

    async def story(left: Left) -> None:
        engine, probe = left.it.engine, left.it.probe
        probe.gpus = (gpu(12.3),)
        await engine.machine.snapshot(most_age_seconds=0.0)  # nothing starts by an older look
        left.watch.add_ended(engine.store.attempts(1)[0])
        looking = asyncio.create_task(left.watch.run_forever())
        spec = make_job("exit=0", device="cuda", gpus=1, ranks=None)
        job, _ = await left.it.service.submit(spec, uid=0, idempotency_key=None)

        async def is_kept() -> bool:
            left.clock += 1.0
            left.watch._new.set()  # time passes
            engine.announce()
            return "which job 1 left behind" in (engine.waits.get(job.id) or "")

        await wait_async(is_kept, "the GPU to be kept")
        assert "GPU 0: in use by 12.3 GiB of memory that no visible process holds" in str(
            engine.waits.get(job.id)
        )
        explained = await left.it.service.explain(job.id)
        assert "12.3 GiB of memory" in explained["holders"][0]["process"]
        probe.gpus = (gpu(0.1),)

        async def is_over() -> bool:
            left.clock += 1.0
            left.watch._new.set()
            engine.announce()
            return (await left.it.service.job(job.id)).state == "succeeded"

        await wait_async(is_over, "the job to have had it")
        looking.cancel()

    tell(tmp_path, story)
