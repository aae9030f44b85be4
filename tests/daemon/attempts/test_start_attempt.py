"""An attempt begins next to its GPUs, on a machine of two nodes that is only told of."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, leave_attempt, running
from tests.daemon.waiting import wait_async
from tests.sensors.numa_machines import a_topology, gpus_near
from zerotools.io.files.mounts import MountPoint
from zerotools.sensors.numa import NumaTopology
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts.start_attempt import what_is_missing
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.interface.api_types import AttemptView, JobView
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow
from zerotoolsd.supervisor.attempt_plan import ATTEMPT

HERE = sorted(os.sched_getaffinity(0))
LEFT, RIGHT = str(HERE[0]), str(HERE[-1])
SOON = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))

pytestmark = pytest.mark.skipif(len(HERE) < 2, reason="it needs two processors")


def two_nodes(*, cores: bool = False) -> NumaTopology:
    """The first and the last processor of this machine, each with a memory node of its own; the
    kernel may not know the second."""
    return a_topology(LEFT, RIGHT)


def probe() -> FakeProbe:
    return FakeProbe(gpus_near(LEFT, RIGHT))


Story = Callable[[Running], Awaitable[None]]


def tell(state: Path, story: Story, config: Config = CONFIG, *, leave: bool = False) -> None:
    async def told() -> None:
        async with running(state, probe(), config, topology=two_nodes, leave=leave) as it:
            await story(it)

    asyncio.run(told())


async def submit(it: Running, fake: str, **changes: Any) -> JobView:
    keys = {"device": "cuda", "ranks": None, "gpus": 1}
    job, _ = await it.service.submit(
        make_job(fake, **{**keys, **changes}), uid=0, idempotency_key=None
    )
    return job


def cpus_of(attempt: AttemptView) -> list[str]:
    return [line["cpus"] for line in attempt.binding or ()]


def planned(it: Running, job: JobView, attempt: int = 1) -> dict[str, Any]:
    text = (it.service.run_dir(job.id, attempt) / "attempt.json").read_text()
    plan: dict[str, Any] = json.loads(text)
    return plan


async def why_started(it: Running, job: JobView) -> list[str | None]:
    events = await it.service.events(0, 0)
    return [each.why for each in events if each.kind == "started" and each.job_id == job.id]


def test_ranks_are_bound_next_to_the_gpus_that_the_attempt_has(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "exit=0", gpus=[1, 0])
        done = await it.reach(job.id, "succeeded", "failed")
        assert cpus_of(done.attempts[0]) == [RIGHT, LEFT]
        plan = planned(it, job)
        assert [binding["cpus"] for binding in plan["bindings"]] == [RIGHT, LEFT]
        assert [binding["nodes"] for binding in plan["bindings"]] == [[1], [0]]
        assert plan["env"]["OMP_NUM_THREADS"] == "1"
        assert await why_started(it, job) == [
            "rank 0 on memory node 1 (1 processor), rank 1 on memory node 0 (1 processor)"
        ]

    tell(tmp_path / "state", story)


def test_a_retry_on_another_gpu_is_bound_there(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "attempt=1:exit=1 exit=0")
        broken = GpuXid(79, time.monotonic() + 60)
        first, second = it.probe.gpus
        it.probe.gpus = (replace(first, xids=(broken,)), second)
        done = await it.reach(job.id, "succeeded", "failed")
        assert [cpus_of(attempt) for attempt in done.attempts] == [[LEFT], [RIGHT]]

    tell(tmp_path / "state", story, SOON)


def test_what_runs_keeps_to_it_and_a_daemon_that_comes_after_shows_it(tmp_path: Path) -> None:
    async def begin(it: Running) -> None:
        job = await submit(it, "release", gpus=[1])
        await it.reach(job.id, "running")

    async def go_on(it: Running) -> None:
        async def shown() -> list[str]:
            return cpus_of((await it.service.job(1)).attempts[0])

        assert await wait_async(shown, "the supervisor to name its ranks") == [RIGHT]
        it.release(1)
        assert cpus_of((await it.reach(1, "succeeded")).attempts[0]) == [RIGHT]

    tell(tmp_path / "state", begin, leave=True)
    tell(tmp_path / "state", go_on)


def test_an_attempt_that_begins_anew_after_a_crash_finds_its_gpus_read(tmp_path: Path) -> None:
    spec = make_job("exit=0", device="cuda", ranks=None, gpus=1)
    leave_attempt(
        tmp_path / "state",
        spec,
        attempt_state="launching",
        gpu_uuids=("GPU-fake-1",),
    )

    async def story(it: Running) -> None:
        assert cpus_of((await it.reach(1, "succeeded")).attempts[0]) == [RIGHT]

    tell(tmp_path / "state", story)


def test_a_job_that_wants_none_has_none_and_all_processors(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "exit=0", numa="off")
        done = await it.reach(job.id, "succeeded")
        assert done.attempts[0].binding is None
        assert planned(it, job)["bindings"] == []
        assert planned(it, job)["env"]["OMP_NUM_THREADS"] == str(len(HERE))
        assert await why_started(it, job) == [None]

    tell(tmp_path / "state", story)


def test_what_the_job_says_of_threads_goes_before_its_part_of_the_node(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "exit=0", env={"FAKE": "exit=0", "OMP_NUM_THREADS": "7"})
        await it.reach(job.id, "succeeded")
        assert planned(it, job)["env"]["OMP_NUM_THREADS"] == "7"

    tell(tmp_path / "state", story)


def test_a_machine_of_one_node_has_nothing_to_say(tmp_path: Path) -> None:
    async def story() -> None:
        one = a_topology(f"{LEFT},{RIGHT}")
        async with running(tmp_path / "state", probe(), topology=lambda cores=False: one) as it:
            job = await submit(it, "exit=0")
            done = await it.reach(job.id, "succeeded")
            assert (done.attempts[0].binding, await why_started(it, job)) == (None, [None])

    asyncio.run(story())


ROOT = MountPoint("/", "8:1", "ext4")


def attempt(run_dir: Path, text: str) -> AttemptRow:
    run_dir.mkdir()
    (run_dir / ATTEMPT).write_text(text)
    return AttemptRow(
        job_id=7,
        number=1,
        token="t",
        state=LAUNCHING,
        run_dir=str(run_dir),
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )


def test_what_cannot_be_read_names_nothing(tmp_path: Path) -> None:
    assert what_is_missing(None, [ROOT]) is None
    assert what_is_missing(attempt(tmp_path / "a", "{}"), [ROOT]) is None
    assert what_is_missing(attempt(tmp_path / "b", "no JSON"), [ROOT]) is None


def test_a_job_that_is_started_again_waits_until_its_file_systems_are_mounted(
    tmp_path: Path,
) -> None:
    out = MountPoint(str(tmp_path / "out"), "0:9", "nfs4")
    mounted = [ROOT, out]
    config = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))

    async def story() -> None:
        async with running(tmp_path / "state", config=config, mounted=lambda: mounted) as it:
            job = make_job("release exit=1", max_restarts=1, output_dir=f"{out.path}/run")
            job_id = (await it.service.submit(job, uid=os.geteuid(), idempotency_key=None))[0].id
            await it.reach(job_id, "running")
            mounted.remove(out)
            it.release(job_id)

            async def waits() -> bool:
                reason = str((await it.service.job(job_id)).reason)
                return f"{out.path} is not mounted any more, but the job has files there" in reason

            await wait_async(waits, "the job to wait for its file system")
            assert not Path(it.service.run_dir(job_id, 2)).exists()
            mounted.append(out)
            await it.reach(job_id, "running")
            it.release(job_id, 2)
            assert len((await it.reach(job_id, "failed")).attempts) == 2

    asyncio.run(story())
