"""Supervisors that are watched, and one that cannot be."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVarTuple

from tests.daemon.daemons import processes_in
from tests.daemon.made_attempts import make_attempt, own_token, wait_for_file
from tests.daemon.waiting import wait_async, wait_for
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher
from zerotoolsd.attempts.delay_starts import StartBackoff
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow

Values = TypeVarTuple("Values")


class FullLoop(asyncio.SelectorEventLoop):
    """A loop in which nothing more can be watched at first: epoll's limit is reached."""

    run_dir: Path
    refusals = 2

    def add_reader(self, fd: Any, callback: Callable[[*Values], Any], *args: *Values) -> None:
        wait_for_file(self.run_dir / "waiting-1")
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().add_reader(fd, callback, *args)


def test_p2_a_supervisor_that_cannot_be_watched_goes_on_and_is_watched_later(
    tmp_path: Path,
) -> None:
    run = make_attempt(tmp_path / "state" / "run", "release exit=0")
    FullLoop.run_dir = run
    attempt = AttemptRow(
        job_id=1,
        number=1,
        token=own_token(),
        state=LAUNCHING,
        run_dir=str(run),
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )
    ended: list[Any] = []

    async def story() -> None:
        watcher = AttemptWatcher(
            on_over=lambda _attempt, record: ended.append(record),
            guard=lambda _job, _doing: nullcontext(lambda: None),
            pending=StartBackoff(lambda: None),
        )
        watcher.start(attempt)
        assert "cannot be watched: No space left" in watcher.held[1]
        assert watcher.watches(attempt)
        watcher.settle(attempt)
        assert not watcher.has_supervisor(attempt)
        watcher.settle(attempt)
        assert watcher.has_supervisor(attempt)
        assert 1 not in watcher.held
        (run / "release").touch()

        async def over() -> bool:
            return bool(ended)

        await wait_async(over, "the attempt to end")
        watcher.close()

    with asyncio.Runner(loop_factory=FullLoop) as runner:
        runner.run(story())
    assert [record["outcome"] for record in ended] == ["finished"]
    wait_for(lambda: not processes_in(tmp_path / "state"), "every process to end", 5.0)
