"""What a job has saved reaches its store, also where it was to start again and does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.attempts.test_make_end_event import a_row
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.made_attempts import an_attempt_row, progress_of
from tests.daemon.waiting import wait_async
from zerotoolsd.attempts import make_attempt_plan
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.dispatch import upload_last_checkpoints
from zerotoolsd.queue.tables.preemption_table import PREEMPT, YieldAsk

UID = os.geteuid()
ONE_RANK = replace(CONFIG, limits=LimitsConfig(cpu_ranks=1))
Story = Callable[[Running], Awaitable[None]]
UPLOAD = """
import os, signal, sys
from pathlib import Path

here = Path({here!r})
if sys.argv[1] == "upload":
    if (here / "hangs").exists():
        (here / "pid").write_text(str(os.getpid()))
        signal.pause()
    if (here / "fails").exists():
        sys.exit((here / "fails").read_text())
    with (here / "sent").open("a") as sent:
        sent.write("sent\\n")
"""


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Uploads only add a line to this file, or fail as the file `fails` says."""
    program = tmp_path / "mirror.py"
    program.write_text(UPLOAD.format(here=str(tmp_path)))
    monkeypatch.setattr(make_attempt_plan, "MIRRORING", program)
    return tmp_path / "sent"


def tell(state: Path, story: Story) -> None:
    async def told() -> None:
        async with running(state, config=ONE_RANK) as it:
            await story(it)

    asyncio.run(told())


async def train(it: Running, fake: str = "stop", **changes: Any) -> int:
    spec = make_job(fake, ranks=1, checkpoint={"upload_to": "s3://b/run"}, **changes)
    job, _ = await it.service.submit(spec, uid=UID, idempotency_key=None)
    await it.reach(job.id, "running")

    async def trains() -> bool:
        kept = progress_of(it.service.run_dir(job.id, 1))
        return any(message["event"] == "step" for message in kept)

    await wait_async(trains, "the rank to train")
    return job.id


async def preempt(it: Running, job_id: int) -> None:
    """Let it save, and not start again."""
    await it.service.drain("for this test", uid=UID)
    job = it.engine.store.job(job_id)
    it.engine._stopping.give_way(job, YieldAsk(purpose=PREEMPT), "preempted")


async def uploading(it: Running, job_id: int) -> dict[str, Any]:
    async def found() -> Any:
        return (it.engine.store.attempts(job_id)[-1].result or {}).get("uploading")

    done: dict[str, Any] = await wait_async(found, "the upload")
    return done


def test_a_preempted_job_that_is_cancelled_sends_what_it_has_saved(
    tmp_path: Path, sends: Path
) -> None:
    async def story(it: Running) -> None:
        job_id = await train(it)
        await preempt(it, job_id)
        await it.reach(job_id, "queued")
        before = sends.read_text() if sends.exists() else ""
        assert "uploading" not in (it.engine.store.attempts(job_id)[-1].result or {})
        await it.service.cancel(job_id, uid=UID)
        await it.reach(job_id, "cancelled")
        assert (await uploading(it, job_id))["why"] is None
        assert sends.read_text() == f"{before}sent\n"
        (attempt,) = it.engine.store.attempts(job_id)
        assert (attempt.result or {})["uploaded"]["path"] == "s3://b/run/step-00000007"
        events = [event.why for event in it.engine.store.events_of(job_id, 100)]
        assert "its last checkpoint, step 7, was uploaded to s3://b/run" in events

    tell(tmp_path / "state", story)


def test_one_that_is_cancelled_while_it_saves_sends_it_too(tmp_path: Path, sends: Path) -> None:
    async def story(it: Running) -> None:
        job_id = await train(it)
        await preempt(it, job_id)
        await it.service.cancel(job_id, uid=UID)
        await it.reach(job_id, "cancelled")
        assert (await uploading(it, job_id))["why"] is None
        assert "sent" in sends.read_text()

    tell(tmp_path / "state", story)


def test_why_nothing_was_sent_is_said(tmp_path: Path, sends: Path) -> None:
    async def story(it: Running) -> None:
        job_id = await train(it)
        await preempt(it, job_id)
        await it.reach(job_id, "queued")
        (tmp_path / "fails").write_text("one\nno such bucket\n")
        await it.service.cancel(job_id, uid=UID)
        assert (await uploading(it, job_id))["why"] == "no such bucket"
        events = [event.why for event in it.engine.store.events_of(job_id, 100)]
        assert "its last checkpoint, step 7, was not uploaded: no such bucket" in events

    tell(tmp_path / "state", story)


def test_what_a_daemon_was_cut_off_at_the_next_one_does(
    tmp_path: Path, sends: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(it: Running) -> None:
        job_id = await train(it)
        await preempt(it, job_id)
        await it.reach(job_id, "queued")
        await it.service.cancel(job_id, uid=UID)

    async def later(it: Running) -> None:
        assert (await uploading(it, 1))["why"] is None

    with monkeypatch.context() as patch:
        patch.setattr(upload_last_checkpoints, "LOOK_SECONDS", 1e6)
        tell(tmp_path / "state", cancelled)
    tell(tmp_path / "state", later)


def test_an_upload_that_hangs_ends_with_the_daemon(tmp_path: Path, sends: Path) -> None:
    (tmp_path / "hangs").touch()

    async def story(it: Running) -> None:
        job_id = await train(it)
        await preempt(it, job_id)
        await it.reach(job_id, "queued")
        await it.service.cancel(job_id, uid=UID)

        async def hangs() -> bool:
            return (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text())

        await wait_async(hangs, "the upload to begin")

    tell(tmp_path / "state", story)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_what_the_supervisor_has_tried_or_nobody_saved_is_not_sent_again() -> None:
    saved = {"checkpoint": {"step": 7, "path": "/out/step-00000007"}}
    spec = make_job("stop", checkpoint={"upload_to": "s3://b/run"})

    def left(*results: dict[str, Any], **changes: Any) -> int | None:
        job = a_row(replace(spec, **changes), state="cancelled")
        attempts = [an_attempt_row(n + 1, result=result) for n, result in enumerate(results)]
        found = upload_last_checkpoints.upload_of(job, attempts)
        return None if found is None else found.step

    assert left(saved) == 7
    assert left(saved, {"outcome": "crashed"}) == 7
    assert left() is None
    assert left({"outcome": "crashed"}) is None
    assert left(saved | {"uploading": {"why": "no room", "seconds": 1.0}}) is None
    assert left(saved | {"uploading": {"why": "its supervisor was killed"}}) == 7
    assert left(saved | {"uploaded": {"step": 7}}) is None
    assert left(saved | {"uploaded": {"step": 6}}) == 7
    assert left(saved, checkpoint=replace(spec.checkpoint, upload_to=None)) is None
