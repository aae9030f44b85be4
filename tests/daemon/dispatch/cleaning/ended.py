"""Jobs that are over, made without running any, and what a clean of them answers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running, running
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends.spawn_supervisor import SUPERVISOR_LOG
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.dispatch import remove_job_files
from zerotoolsd.interface.api_types import Cleaned, CleanRequest, JobView, NotFound
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor import hook_commands
from zerotoolsd.supervisor.hook_commands import THINNING_LOG

ME = os.geteuid()
Story = Callable[[Running], Awaitable[None]]


def tell(state: Path, story: Story, config: Config | None = None) -> None:
    async def told() -> None:
        async with running(state, config=config) as it:
            await story(it)

    asyncio.run(told())


async def submit(it: Running, fake: str = "exit=0", **changes: Any) -> JobView:
    job, _ = await it.service.submit(make_job(fake, **changes), uid=ME, idempotency_key=None)
    return job


async def over(
    it: Running, *, step: int | None = None, output_dir: str | None = None, state: str = "succeeded"
) -> int:
    """A job that has ended, with the files that it left; nothing of it ever ran."""
    store, now = it.engine.store, time.time()
    job = queued(it, make_job("", output_dir=output_dir), output_dir)
    run_dir = it.engine.jobs_dir / str(job.id) / "attempt-1"
    run_dir.mkdir(parents=True)
    (run_dir / "rank-0.log").write_bytes(b"x" * 2000)
    for name in ("progress.jsonl", SUPERVISOR_LOG, THINNING_LOG, hook_commands.LOG):
        (run_dir / name).touch()
    (run_dir / "importable").mkdir()
    (run_dir / "importable" / "zerotools").symlink_to(Path(remove_job_files.__file__).parent)
    result: dict[str, Any] = {"outcome": "finished", "progress": {"event": "step", "step": 3}}
    if step is not None:
        path = Path(job.output_dir) / f"step-{step:08d}"
        path.mkdir(parents=True)
        (path / "data").write_bytes(b"weights")
        result["checkpoint"] = {"step": step, "path": str(path)}
    attempt = AttemptRow(
        job_id=job.id,
        number=1,
        token=f"{job.id}",
        state="launching",
        run_dir=str(run_dir),
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )
    with store.change(job, JobStatus(state="launching"), "admit", now=now, attempt=1) as change:
        change.add_attempt(attempt)
    launched = store.job(job.id)
    with store.change(launched, JobStatus(state=state), "finished", now=now, attempt=1) as change:
        change.attempt_ended(1, now, result, None)
    return job.id


def queued(it: Running, spec: JobSpec, output_dir: str | None) -> JobRow:
    job, _ = it.engine.store.submit(
        uid=ME,
        name=None,
        spec=spec,
        output_dir=output_dir,
        default_output=it.engine.jobs_dir,
        idempotency_key=None,
        now=time.time(),
    )
    return job


async def clean(it: Running, *jobs: int, **wishes: Any) -> Cleaned:
    return await it.service.clean(CleanRequest(jobs=jobs or None, **wishes), uid=ME, of=None)


def ids(cleaned: Cleaned) -> list[int]:
    return [job.id for job in cleaned.jobs]


async def is_known(it: Running, job_id: int) -> bool:
    try:
        await it.service.job(job_id)
    except NotFound:
        return False
    return True
