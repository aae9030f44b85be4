"""A job that runs and does not get on is told of once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt
from zerotools.jobs.tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.notice_text import JobTeller
from zerotoolsd.monitoring.notifications.stall_watch import StallWatch
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.heartbeats.heartbeats import FILE


@contextmanager
def no_guard(job_id: int, doing: str) -> Iterator[Callable[[], None]]:
    yield lambda: None


def test_a_stall_is_told_once(tmp_path: Path) -> None:
    notify = NotifySpec(on=("stalled",), webhook="https://hooks.test/x")
    run = leave_attempt(tmp_path / "state", replace(make_job(""), notify=notify))
    with closing(Store(tmp_path / "state")) as store:
        watch = StallWatch(store, JobTeller(NotifyConfig(), "box1"), no_guard)
        watch.look()
        (run / FILE).write_text("not JSON")
        watch.look()
        assert store.outbox.of_job(1) == []
        assert watch.stalled == frozenset()
        (run / FILE).write_text(json.dumps({"stalled": "rank 1 stands\x1b[2J"}))
        for _ in range(3):
            watch.look()
        StallWatch(store, JobTeller(NotifyConfig(), "box1"), no_guard).look()  # of the next daemon
        assert watch.stalled == {1}
        (notice,) = store.outbox.of_job(1)
        (run / FILE).write_text("{}")
        watch.look()
        assert watch.stalled == frozenset()
    assert (notice.notice, notice.channel) == ("stalled", "webhook")
