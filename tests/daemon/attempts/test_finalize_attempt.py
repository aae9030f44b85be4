"""Ends of attempts in the queue."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.supervisor.attempt_plan import OUTSIDE

SOON = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))


def test_a_shutdown_of_the_machine_costs_no_restart(tmp_path: Path) -> None:
    """systemd ends jobs with SIGTERM then, and their supervisors record that."""

    async def story() -> None:
        async with running(tmp_path / "state", config=SOON) as it:
            spec = make_job("attempt=1:release exit=0", max_restarts=1)
            view, _ = await it.service.submit(spec, uid=os.geteuid(), idempotency_key=None)
            await it.reach(view.id, "running")
            store, before = it.engine.store, Moment(time.time(), 1.0, "before the restart")
            job, attempt = store.job(view.id), store.attempts(view.id)[0]
            with store.change(job, job.standing, "started", now=1.0, attempt=1) as change:
                change.attempt_started(1, before)
            record = {"outcome": "crashed", "stop_reason": OUTSIDE, "cause": "saved"}
            it.engine._ends.record_end(attempt, {**record, "token": attempt.token})
            after = await it.reach(view.id, "succeeded")
            assert after.attempts[0].cause == "the machine was restarted: saved"
            assert it.engine.store.job(view.id).standing.restarts_used == 0
            (Path(attempt.run_dir) / "release").touch()

    asyncio.run(story())
