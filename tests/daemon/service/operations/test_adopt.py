"""A training that somebody started by hand, watched by a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from harness.started import Started
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.service.test_answer_requests import ME, Story, refusal, submit
from tests.daemon.waiting import wait_async, wait_for
from zerotools.core.errors import BadRequest
from zerotools.sensors.snapshot import GpuProcess
from zerotoolsd.config.config_tables import LimitsConfig, StopConfig
from zerotoolsd.file_checks.file_checker_pool import SlowCheck
from zerotoolsd.interface.api_types import Adoption, Conflict, JobView, Unavailable
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.operations import adopt as adopting

IGNORES = 'trap "" TERM; while :; do sleep 0.05; done'


@contextmanager
def started(program: str) -> Iterator[Started]:
    """`sh -c program`, which ends or not when its input is closed."""
    child = Started(["sh", "-c", program], stdin=subprocess.PIPE)
    try:
        yield child
    finally:
        child.end()


def tell(state: Path, story: Story, grace: float = 60.0, probe: FakeProbe | None = None) -> None:
    async def told() -> None:
        limits, stop = LimitsConfig(cpu_ranks=1), StopConfig(grace_seconds=grace)
        config = replace(CONFIG, limits=limits, stop=stop)
        async with running(state, probe, config) as it:
            await story(it)

    asyncio.run(told())


async def adopt(it: Running, pid: int, time_limit: int | None = None) -> JobView:
    wanted = Adoption(pid=pid, name="by-hand", time_limit=time_limit)
    return (await it.service.adopt(wanted, uid=ME)).job


async def watched(it: Running, job_id: int) -> None:
    """Until its watcher knows it."""
    log = it.service.run_dir(job_id, 1) / "rank-0.log"

    async def known() -> bool:
        return log.exists() and b"watching process" in log.read_bytes()

    await wait_async(known, "the watcher")


def close_input(child: Started) -> None:
    assert child.stdin is not None
    child.stdin.close()


def test_it_is_followed_to_its_end_beside_jobs_that_have_all_there_is(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        with started("read word; exit 0") as good, started("read word; exit 3") as bad:
            other = await submit(it, "release exit=0", ranks=1)
            await it.reach(other.id, "running")
            jobs = [await adopt(it, good.pid), await adopt(it, bad.pid)]
            for job in jobs:
                await it.reach(job.id, "running")
                await watched(it, job.id)
            close_input(good)
            close_input(bad)
            assert (await it.reach(jobs[0].id, "succeeded", "failed")).state == "succeeded"
            failed = await it.reach(jobs[1].id, "failed")
            assert str(failed.reason).startswith(f"process {bad.pid} exited with 3")
            assert len(failed.attempts) == 1
            it.release(other.id)
            assert (await it.reach(other.id, "succeeded")).state == "succeeded"

    tell(tmp_path / "state", story)


def test_a_cancel_leaves_it_alone(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        with started("read word") as child:
            job = await adopt(it, child.pid)
            await it.reach(job.id, "running")
            await watched(it, job.id)
            await it.service.cancel(job.id, uid=ME)
            over = await it.reach(job.id, "cancelled")
            assert str(over.reason).endswith("no longer watched; the process continues")
            assert child.poll() is None
            again = await it.service.resume(job.id, uid=ME)  # it may be watched again
            await it.reach(again.id, "running")
            await watched(it, again.id)
            assert child.poll() is None

    tell(tmp_path / "state", story)


def test_its_time_limit_ends_it_and_all_below_it_also_where_it_does_not_listen(
    tmp_path: Path,
) -> None:
    async def story(it: Running) -> None:
        with started(f"({IGNORES}) & {IGNORES}") as deaf, started("sleep 1000; exit 5") as hears:
            jobs = [await adopt(it, deaf.pid, 1), await adopt(it, hears.pid, 1)]
            for job in jobs:
                ended = await it.reach(job.id, "stopped", "failed")
                assert ended.state == "stopped", ended.reason
                assert ended.reason == ("its time limit of 1 s is over; ended on request")
            assert hears.wait() == -signal.SIGTERM  # with its program, and before it went on
            assert deaf.wait() == -signal.SIGKILL
            wait_for(lambda: not _group(deaf.pid), "all of its processes to be gone")

    tell(tmp_path / "state", story, grace=3.0)


def _group(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_not_the_daemons_is_not_paused_nor_watched_twice(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        with started("read word") as child:
            job = await adopt(it, child.pid)
            await it.reach(job.id, "running")
            said = await refusal(adopt(it, child.pid), Conflict)
            assert said == f"process {child.pid} is watched already, by job {job.id}"
            paused = it.service.pause(job.id, uid=ME, lose_steps=True)
            assert "the daemon cannot start it again" in await refusal(paused, Conflict)
            await watched(it, job.id)
            close_input(child)
            await it.reach(job.id, "failed", "succeeded")
            child.wait()
            gone = await refusal(it.service.retry(job.id, uid=ME), BadRequest)
            assert f"process {child.pid} is gone: it has ended" in gone

    tell(tmp_path / "state", story)


def test_a_watcher_that_is_killed_says_nothing_of_the_process(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        with started("read word") as child:
            job = await adopt(it, child.pid)
            await it.reach(job.id, "running")
            await watched(it, job.id)
            run = json.loads((it.service.run_dir(job.id, 1) / "run.json").read_text())
            os.kill(run["ranks"][0]["pid"], signal.SIGKILL)
            failed = await it.reach(job.id, "failed")
            assert str(failed.reason).startswith(
                "its watcher failed, and the process itself may still"
            )
            assert child.poll() is None

    tell(tmp_path / "state", story)


def test_one_user_has_so_many_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopting, "MOST_WATCHED", 1)

    async def story(it: Running) -> None:
        with started("read word") as one, started("read word") as other:
            job = await adopt(it, one.pid)
            said = await refusal(adopt(it, other.pid), Conflict)
            assert said.startswith("1 process of yours is watched already")
            await it.service.cancel(job.id, uid=ME)
            await it.reach(job.id, "cancelled")
            await adopt(it, other.pid)

    tell(tmp_path / "state", story)


def test_two_who_ask_at_once_get_one_job(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        with started("read word") as child:
            both = await asyncio.gather(
                adopt(it, child.pid), adopt(it, child.pid), return_exceptions=True
            )
            assert [type(each) for each in both].count(Conflict) == 1
            assert len(await it.service.jobs()) == 1

    tell(tmp_path / "state", story)


def test_the_gpus_that_it_uses_are_told(tmp_path: Path) -> None:
    gpu, probe = fake_gpu(0), FakeProbe(gpus=(fake_gpu(0), fake_gpu(1)))

    async def story(it: Running) -> None:
        with started("read word") as child:
            used = GpuProcess(pid=child.pid, memory_used_bytes=1 << 30)
            probe.gpus = (replace(gpu, processes=(used,)), fake_gpu(1))
            found = await it.service.adopt(Adoption(pid=child.pid), uid=ME)
            assert found.gpu_uuids == (gpu.uuid,)
            assert found.below == ()
            assert found.job.name == "sh"

    tell(tmp_path / "state", story, probe=probe)


def test_a_check_that_takes_long_does_not_blame_proc(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        for error, why in ((SlowCheck, "try again when"), (TimeoutError, "/proc does not answer")):

            async def ask(*_: object, error: type[Exception] = error, **__: object) -> None:
                raise error

            service = JobRequests(it.engine, ask=ask)
            said = await refusal(service.adopt(Adoption(pid=os.getpid()), uid=ME), Unavailable)
            assert why in said

    tell(tmp_path / "state", story)


def test_it_is_named_after_its_program(tmp_path: Path) -> None:
    program = tmp_path / "train_llama.py"
    program.write_text("input()\n")

    async def story(it: Running) -> None:
        with started(f"exec {sys.executable} -u {program} --lr 1e-4") as child:
            wait_for(lambda: _runs(child.pid, program), "the program to run")
            found = await it.service.adopt(Adoption(pid=child.pid), uid=ME)
            assert found.job.name == "train_llama"

    tell(tmp_path / "state", story)


def _runs(pid: int, program: Path) -> bool:
    return os.fsencode(program) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
