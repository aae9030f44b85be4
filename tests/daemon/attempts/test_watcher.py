"""Supervisors that are watched, and one that cannot be."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVarTuple

import pytest

from tests.daemon.daemons import processes_in
from tests.daemon.made_attempts import make_attempt, wait_for_file
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts.watcher import Watcher
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow

Values = TypeVarTuple("Values")


class FullLoop(asyncio.SelectorEventLoop):
    """A loop in which nothing more can be watched: epoll's limit is reached."""

    run_dir: Path

    def add_reader(self, fd: Any, callback: Callable[[*Values], Any], *args: *Values) -> None:
        wait_for_file(self.run_dir / "waiting-1")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_p2_a_supervisor_that_cannot_be_watched_is_ended(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "state" / "run", "release")
    FullLoop.run_dir = run
    attempt = AttemptRow(
        job_id=1,
        number=1,
        token="t" * 32,
        state=LAUNCHING,
        run_dir=str(run),
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )

    async def story() -> None:
        watcher = Watcher(
            lambda _attempt, _record: None, lambda _job, _doing: nullcontext(lambda: None)
        )
        with pytest.raises(OSError, match="No space left"):
            watcher.start(attempt)
        watcher.close()

    with asyncio.Runner(loop_factory=FullLoop) as runner:
        runner.run(story())
    wait_for(lambda: not processes_in(tmp_path / "state"), "every process to end", 5.0)
