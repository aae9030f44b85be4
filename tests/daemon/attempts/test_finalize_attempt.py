"""Ends of attempts in the queue."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.supervisor import procfs
from zerotoolsd.supervisor.attempt_plan import OUTSIDE

SOON = replace(CONFIG, retry=RetryConfig(first_seconds=0.01))


def test_a_shutdown_of_the_machine_costs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd ends jobs with SIGTERM then, and their supervisors record that."""

    async def story() -> None:
        async with running(tmp_path / "state", config=SOON) as it:
            spec = make_job("attempt=1:release exit=0", max_restarts=1)
            view, _ = await it.service.submit(spec, uid=os.geteuid(), idempotency_key=None)
            await it.reach(view.id, "running")
            attempt = it.engine.store.attempts(view.id)[0]
            record = {"outcome": "crashed", "stop_reason": OUTSIDE, "cause": "saved"}
            with monkeypatch.context() as after:
                after.setattr(procfs, "boot_id", lambda: "the next boot")
                it.engine._ends.record_end(attempt, {**record, "token": attempt.token})
            job = await it.reach(view.id, "succeeded")
            assert job.attempts[0].cause == "the machine was restarted: saved"
            assert it.engine.store.job(view.id).standing.restarts_used == 0
            (Path(attempt.run_dir) / "release").touch()

    asyncio.run(story())
