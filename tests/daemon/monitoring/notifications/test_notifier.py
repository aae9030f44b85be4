"""From a job's end to whoever is told, in an engine of the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.notify import NotifySpec


def test_a_job_tells_of_its_end_and_explains_what_it_could_not_tell(tmp_path: Path) -> None:
    out = tmp_path / "told"
    notify = NotifySpec(
        on=("succeeded",), webhook="http://127.0.0.1:1/key", command=("sh", "-c", f"cat > {out}")
    )
    config = replace(CONFIG, notify=replace(CONFIG.notify, allow=("http://127.0.0.1:1",)))

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            spec = replace(make_job("exit=0"), notify=notify)
            job, _ = await it.service.submit(spec, uid=os.geteuid(), idempotency_key=None)
            assert job.spec["notify"]["webhook"] == "http://127.0.0.1:1/***"
            await it.reach(job.id, "succeeded")

            async def told() -> bool:
                tries = [each.tries for each in it.engine.store.outbox.of_job(job.id)]
                return out.exists() and bool(out.read_text()) and tries == [1]

            await wait_async(told, "one notice to be delivered and one to fail")
            tree = json.loads(out.read_text())
            assert (tree["notice"], tree["job"]["id"]) == ("succeeded", job.id)
            (left,) = (await it.service.explain(job.id))["notifications"]
            assert (left["notice"], left["channel"], left["tries"]) == ("succeeded", "webhook", 1)
            assert "Connect" in left["trouble"]
            text = await it.service.metrics(openmetrics=False)
            assert "\nzerotools_notifications_waiting 1\n" in text
            assert '\nzerotools_notifications_total{result="delivered"} 1\n' in text

    asyncio.run(story())


def test_a_job_that_would_send_elsewhere_is_refused(tmp_path: Path) -> None:
    spec = replace(make_job("exit=0"), notify=NotifySpec(webhook="https://evil.test/key"))

    async def story() -> None:
        async with running(tmp_path / "state") as it:
            with pytest.raises(BadRequest, match=r"notify\.webhook: this daemon sends to no host"):
                await it.service.submit(spec, uid=os.geteuid(), idempotency_key=None)

    asyncio.run(story())
