"""Attempts whose supervisors are started by a systemd that fails in every way."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.attempts.backends.fake_systemd import FakeSystemd
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from tests.daemon.waiting import wait_async
from zerotoolsd.attempts import attempt_watcher
from zerotoolsd.queue.store import Store


async def submit(it: Running, fake: str = "exit=0") -> int:
    job, _ = await it.service.submit(make_job(fake, ranks=1), uid=0, idempotency_key=None)
    return int(job.id)


async def why_waits(it: Running, job: int) -> str:
    """What a job waits for that was admitted, once that is known."""

    async def said() -> str | None:
        return it.engine.why_it_waits(it.engine.store.job(job))

    return str(await wait_async(said, "the job to wait"))


async def asked(systemd: FakeSystemd) -> None:
    """Until systemd was asked for something."""

    async def called() -> bool:
        return bool(systemd.calls)

    await wait_async(called, "systemd to be asked")


def started(state: Path) -> list[str]:
    """Every rank that began, of any attempt."""
    return sorted(str(path) for path in state.glob("jobs/*/attempt-*/rank-*.log"))


def test_a_job_runs_in_a_unit_of_its_own_and_is_running_since_its_supervisor_is(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd")
        async with running(tmp_path / "state", way=systemd.way()) as it:
            job = await submit(it, "release")
            assert it.engine.store.job(job).state in ("queued", "launching")
            (attempt,) = (await it.reach(job, "running")).attempts
            assert attempt.started is not None
            it.release(job)
            await it.reach(job, "succeeded")
        assert len(systemd.calls) == len(started(tmp_path / "state")) == 1

    asyncio.run(story())


@pytest.mark.parametrize(("mode", "seconds"), [("start-and-refuse", 20.0), ("start-and-hang", 0.5)])
def test_p2_a_unit_that_runs_though_systemd_run_failed_is_found_and_not_doubled(
    tmp_path: Path, mode: str, seconds: float
) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd", mode)
        way = systemd.way(may_be_child=True, seconds=seconds)
        async with running(tmp_path / "state", way=way) as it:
            job = await submit(it, "release")
            await it.reach(job, "running")
            it.release(job)
            assert len((await it.reach(job, "succeeded")).attempts) == 1
        assert len(started(tmp_path / "state")) == 1

    asyncio.run(story())


def test_where_systemd_refuses_a_job_waits_and_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd", "refuse")
        async with running(tmp_path / "state", way=systemd.way()) as it:
            job = await submit(it)

            assert await why_waits(it, job) == (
                "the machine is not ready: systemd-run: Failed to start transient service unit: "
                "Access denied; the start will be tried again"
            )
            assert started(tmp_path / "state") == []
            assert "Access denied" in str(it.engine.spawner.to_json()["trouble"])
            systemd.set_mode("start")
            assert len((await it.reach(job, "succeeded")).attempts) == 1
            assert it.engine.spawner.to_json()["trouble"] is None

    asyncio.run(story())


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_where_a_child_will_do_it_is_one(tmp_path: Path, mode: str) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd", mode)
        way = systemd.way(may_be_child=True, seconds=0.2)
        async with running(tmp_path / "state", way=way) as it:
            assert len((await it.reach(await submit(it), "succeeded")).attempts) == 1
            assert it.engine.spawner.to_json()["by"] == "child"
            await it.reach(await submit(it), "succeeded")
        assert len(systemd.calls) == 1

    asyncio.run(story())


def test_without_the_program_jobs_are_children_or_wait(tmp_path: Path) -> None:
    async def story(*, may_be_child: bool) -> None:
        systemd = FakeSystemd(tmp_path / f"systemd-{may_be_child}")
        way = systemd.way(may_be_child=may_be_child)
        systemd.program.unlink()
        async with running(tmp_path / f"state-{may_be_child}", way=way) as it:
            job = await submit(it)
            if may_be_child:
                await it.reach(job, "succeeded")
                return

            assert "does not exist any more" in await why_waits(it, job)

    asyncio.run(story(may_be_child=True))
    asyncio.run(story(may_be_child=False))


def test_a_supervisor_that_ends_at_once_says_why_itself(tmp_path: Path) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd", "die")
        async with running(tmp_path / "state", way=systemd.way(may_be_child=True)) as it:
            job = await submit(it)

            assert "(no room for exit.json)" in await why_waits(it, job)
            assert it.engine.spawner.to_json()["by"] == "systemd"
            systemd.set_mode("start")
            assert len((await it.reach(job, "succeeded")).attempts) == 1

    asyncio.run(story())


@pytest.mark.parametrize("mode", ["start", "start-and-hang", "hang"])
def test_a_job_that_is_cancelled_while_systemd_is_asked_stops(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_watcher, "HURRIED_SECONDS", 0.3)

    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd", mode)
        async with running(tmp_path / "state", way=systemd.way()) as it:
            job = await submit(it, "stop")

            await asked(systemd)
            await it.service.cancel(job, uid=0)
            await it.reach(job, "cancelled")

    asyncio.run(story())


@pytest.mark.parametrize("mode", ["start", "start-and-hang", "hang"])
def test_p2_a_daemon_that_ends_while_systemd_is_asked_leaves_one_attempt_to_the_next(
    tmp_path: Path, mode: str
) -> None:
    async def story() -> None:
        systemd, state = FakeSystemd(tmp_path / "systemd", mode), tmp_path / "state"
        async with running(state, way=systemd.way(), leave=True) as it:
            job = await submit(it, "release")

            await asked(systemd)
        systemd.set_mode("start")
        async with running(state, way=systemd.way()) as it:
            await it.reach(job, "running")
            it.release(job)
            assert len((await it.reach(job, "succeeded")).attempts) == 1
        assert len(started(state)) == 1

    asyncio.run(story())


def test_two_daemons_with_a_job_1_each_do_not_meet(tmp_path: Path) -> None:
    async def story() -> None:
        systemd = FakeSystemd(tmp_path / "systemd")
        async with (
            running(tmp_path / "one", way=systemd.way()) as one,
            running(tmp_path / "two", way=systemd.way()) as two,
        ):
            jobs = await submit(one), await submit(two)
            assert jobs == (1, 1)
            await asyncio.gather(one.reach(1, "succeeded"), two.reach(1, "succeeded"))

    asyncio.run(story())
    with closing(Store(tmp_path / "one")) as store:
        assert len(store.attempts(1)) == 1
