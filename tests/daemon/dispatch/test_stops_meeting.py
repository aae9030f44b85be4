"""Stops that meet in the middle of a stop, and kills at that moment, also under the next daemon."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.daemon.dispatch.test_upload_last_checkpoints import ONE_RANK, UID, preempt, sends, train
from tests.daemon.dispatchers import Running, running
from tests.daemon.made_attempts import started
from tests.daemon.waiting import wait_async
from tests.matrices import FULL
from zerotools.core.errors import ZerotoolsError
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import ENDED

__all__ = ["sends"]
SAVED = "saved at step 7 and stopped"
CASES = [
    # first, then what meets it; whether that is refused; how the job ends, why, and in which way.
    ("pause", "pause", False, "paused", SAVED),
    ("pause", "preempt", True, "paused", SAVED),
    ("pause", "cancel", False, "cancelled", SAVED),
    ("pause", "unpause", False, "queued", SAVED),
    ("pause", "supervisor", False, "paused", "lost: its supervisor was killed"),
    ("pause", "keeper", False, "paused", SAVED),
    ("pause", "rank", False, "paused", "rank 0 was ended by signal 9"),
    ("preempt", "pause", False, "paused", SAVED),
    ("preempt", "preempt", False, "queued", SAVED),
    ("preempt", "cancel", False, "cancelled", SAVED),
    ("preempt", "unpause", True, "queued", SAVED),
    ("preempt", "supervisor", False, "queued", None),
    ("preempt", "keeper", False, "queued", SAVED),
    ("preempt", "rank", False, "queued", None),
    ("cancel", "pause", True, "cancelled", SAVED),
    ("cancel", "preempt", True, "cancelled", SAVED),
    ("cancel", "cancel", False, "cancelled", SAVED),
    ("cancel", "unpause", True, "cancelled", SAVED),
    ("cancel", "supervisor", False, "cancelled", "lost: its supervisor was killed"),
    ("cancel", "keeper", False, "cancelled", SAVED),
    ("cancel", "rank", False, "cancelled", "rank 0 was ended by signal 9"),
]
QUICK = {("preempt", "pause"), ("preempt", "cancel"), ("pause", "supervisor"), ("cancel", "keeper")}


async def ask(it: Running, what: str) -> None:
    """Ask job 1 for a stop, or kill a process of its attempt."""
    match what:
        case "pause":
            await it.service.pause(1, uid=UID)
        case "unpause":
            await it.service.unpause(1, uid=UID)
        case "cancel":
            await it.service.cancel(1, uid=UID)
        case "preempt":
            await preempt(it, 1)
        case _:
            run = started(it.service.run_dir(1, 1))
            processes = {"supervisor": run, "keeper": run["keeper"], "rank": run["ranks"][0]}
            os.kill(processes[what]["pid"], signal.SIGKILL)


@pytest.mark.parametrize("next_daemon", [False, True])
@pytest.mark.parametrize(
    ("first", "then", "is_refused", "state", "why"),
    [case for case in CASES if FULL or case[:2] in QUICK],
)
def test_p5_the_job_ends_as_was_asked_last_and_begins_nothing_again(
    tmp_path: Path,
    sends: Path,
    *,
    next_daemon: bool,
    first: str,
    then: str,
    is_refused: bool,
    state: str,
    why: str | None,
) -> None:
    async def meet(it: Running) -> None:
        await it.service.drain("for this test", uid=UID)
        try:
            await ask(it, then)
        except (ZerotoolsError, NotAllowed):
            assert is_refused
        else:
            assert not is_refused
        (it.service.run_dir(1, 1) / "release").touch()
        job = await it.reach(1, state)
        attempts = it.engine.store.attempts(1)
        assert [attempt.state for attempt in attempts] == [ENDED]
        assert why is None or why in str(job.reason)
        if state != "queued" and why == SAVED:
            # With the last request, or by the first that did not let the job go on.
            assert (attempts[0].result or {})["uploading"]["why"] is None
            assert "sent" in sends.read_text()

    async def story() -> None:
        async with running(tmp_path / "state", config=ONE_RANK, leave=next_daemon) as it:
            # The rank is in the middle of its stop until the file `release` is there.
            await train(it, "steps=1 deaf release stop")
            await ask(it, first)
            if not next_daemon:
                await meet(it)
        if next_daemon:
            async with running(tmp_path / "state", config=ONE_RANK) as it:
                await meet(it)

    asyncio.run(story())


def test_p5_a_checkpoint_whose_upload_was_cut_off_is_sent_by_the_daemon(
    tmp_path: Path, sends: Path
) -> None:
    (tmp_path / "hangs").touch()

    async def story() -> None:
        async with running(tmp_path / "state", config=ONE_RANK) as it:
            await train(it)
            await it.service.cancel(1, uid=UID)

            async def uploads() -> bool:
                return (tmp_path / "pid").exists()

            await wait_async(uploads, "the upload to begin")
            (tmp_path / "hangs").unlink()
            await ask(it, "supervisor")
            await it.reach(1, "cancelled")

            async def sent() -> bool:
                return sends.exists()

            await wait_async(sent, "the upload")

            async def corrected() -> bool:
                return "not uploaded" not in str(it.engine.store.job(1).standing.reason)

            await wait_async(corrected, "its reason to be corrected")
            reason = str(it.engine.store.job(1).standing.reason)
            assert reason.endswith("; its newest checkpoint was uploaded later")

    asyncio.run(story())
