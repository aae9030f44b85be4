"""Make `tests/golden/zerotools-VERSION/queue.db`: jobs in every state, by the daemon at hand.

    python -m tests.daemon.queue.generate_queue OUT.db

Once per schema, with the version that is published with it; the state directory was STATE.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.config.config_tables import LimitsConfig, RetryConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue.store import Store

PLACE = Path("/srv/zerotools-golden")
STATE = PLACE / "state"
CONFIG = replace(Config(), limits=LimitsConfig(cpu_ranks=2), retry=RetryConfig(first_seconds=300))


def job(fake: str, **changes: Any) -> JobSpec:
    return make_job(fake, data={"text": [str(PLACE / "text.txt")]}, **changes)


def of_older_rules() -> JobSpec:
    """SGD with betas, which the first daemons took."""
    plain = job("exit=0", name="sgd with betas")
    return replace(plain, train=replace(plain.train, optimizer="sgd", betas=(0.8, 0.9)))


async def story() -> None:
    uid = os.geteuid()
    async with running(STATE, config=CONFIG, leave=True) as it:

        async def submit(spec: JobSpec) -> int:
            return (await it.service.submit(spec, uid=uid, idempotency_key=spec.name))[0].id

        await it.reach(await submit(job("steps=3 save=3 exit=0", name="done")), "succeeded")
        await it.reach(await submit(job("exit=9", name="broken", max_restarts=0)), "failed")
        cancelled = await submit(job("stop", name="cancelled"))
        await it.reach(cancelled, "running")
        await it.service.cancel(cancelled, uid=uid)
        await it.reach(cancelled, "cancelled")
        limited = job("stop", name="limited", time_limit=1, output_dir=str(PLACE / "limited"))
        await it.reach(await submit(limited), "stopped")
        crashed = await submit(job("attempt=1:exit=9 exit=0", name="crashed"))
        await it.reach(crashed, "waiting_retry")
        runs = job("attempt=1:release exit=0", name="runs", max_restarts=2, time_limit="1h")
        await it.reach(await submit(runs), "running")
        await submit(job("exit=0", name="waits"))
        it.release(6)  # it ends after the daemon
    store = Store(STATE)
    store.submit(
        uid=uid,
        name="sgd with betas",
        spec=of_older_rules(),
        output_dir=None,
        default_output=STATE / "jobs",
        idempotency_key=None,
        now=time.time(),
    )
    store.close()


def main(out: Path) -> None:
    PLACE.mkdir(parents=True)
    try:
        (PLACE / "text.txt").write_text("text\n")
        asyncio.run(story())
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(STATE / "zerotools.db", out)
    finally:
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
