"""A queue that is made anew books the GPU time of the attempts that it takes in."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.daemon.attempts.test_recover_lost_attempts import (
    DATABASE,
    UID,
    forget,
    run,
    submit,
)
from tests.daemon.dispatchers import Running
from tests.daemon.waiting import wait_async
from zerotools.jobs.client import queue_backup
from zerotoolsd.supervisor.durable_files import read_json


@pytest.mark.parametrize("lost", ["all", "since a backup", "all, and its last record"])
def test_a_queue_that_is_made_anew_books_what_attempts_have_used(tmp_path: Path, lost: str) -> None:
    """Each attempt is booked once, as its own records say, earlier ones too."""
    state, copy = tmp_path / "state", tmp_path / "copy.db"

    async def before(it: Running) -> None:
        queue_backup.back_up_queue(state, copy)
        number = await submit(it, "steps=1 save=1 exit=9", max_restarts=1)
        await it.reach(number, "failed")
        assert len((await it.service.job(number)).attempts) == 2

    run(state, before)
    for number, seconds, part in ((1, 100.0, None), (2, 7.5, 0.5)):
        run_dir = state / "jobs" / "1" / f"attempt-{number}"
        began = time.time() - 150
        for name, more in (
            ("attempt.json", {"gpu_uuids": ["GPU-1", "GPU-2"], "gpu_part": part or 1.0}),
            ("run.json", {"started": began, "started_clock": time.monotonic() - 150}),
            ("exit.json", {"ended": began + seconds, "ran_seconds": seconds}),
        ):
            known = read_json(run_dir / name)
            assert known is not None
            (run_dir / name).write_text(json.dumps({**known, **more}))
    if lost == "all, and its last record":  # it was killed, and its keeper too
        (run_dir / "exit.json").unlink()
        for path in run_dir.iterdir():
            os.utime(path, (began + 7.5, began + 7.5), follow_symlinks=False)
    if lost != "since a backup":
        forget(state)
    else:
        shutil.copyfile(copy, state / DATABASE)
        (state / queue_backup.LAST_CHANGE).unlink()

    async def after(it: Running) -> None:
        await it.reach(1, "held")

        async def settled() -> bool:
            return all(each.state == "ended" for each in it.engine.store.attempts(1))

        await wait_async(settled, "the attempts to be over")
        used = 2 * 100.0 + 2 * 7.5 * 0.5
        assert it.engine.store.gpu_use.in_all() == {UID: pytest.approx(used)}

    run(state, after, rebuild=lost != "since a backup")
