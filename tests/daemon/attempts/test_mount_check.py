"""A job whose file system was unmounted waits for it, and does not begin in an empty directory."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.waiting import wait_async
from zerotools.io.files.mounts import MountPoint
from zerotoolsd.attempts.mount_check import what_is_missing
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow
from zerotoolsd.supervisor.plan import ATTEMPT

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
                return f"{out.path} is not mounted any more, and the job has files there" in reason

            await wait_async(waits, "the job to wait for its file system")
            assert not Path(it.service.run_dir(job_id, 2)).exists()
            mounted.append(out)
            await it.reach(job_id, "running")
            it.release(job_id, 2)
            assert len((await it.reach(job_id, "failed")).attempts) == 2

    asyncio.run(story())
