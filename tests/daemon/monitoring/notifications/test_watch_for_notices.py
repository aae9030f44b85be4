"""First steps and stalls of running attempts: each is reported once, also by the next daemon."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig
from zerotoolsd.monitoring.notifications.deliver_notices import JobNotifier
from zerotoolsd.monitoring.notifications.make_notices import JobNotices
from zerotoolsd.monitoring.notifications.watch_for_notices import (
    CALM_SECONDS,
    ProgressWatch,
    ShortageWatch,
)
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import FILE


@contextmanager
def no_guard(job_id: int, doing: str) -> Iterator[Callable[[], None]]:
    yield lambda: None


def new_watch(store: Store) -> ProgressWatch:
    return ProgressWatch(store, JobNotices(NotifyConfig(), "box1"), no_guard)


def run_of_job(state: Path, *on: str) -> Path:
    notify = NotifySpec(on=on, webhook="https://hooks.test/x")
    return leave_attempt(state, replace(make_job(""), notify=notify))


def deliver(store: Store) -> list[Notice]:
    """Take the waiting notices out of the outbox."""
    found = store.outbox.of_job(1)
    for each in found:
        store.outbox.delivered(each, 1.0)
    return found


def test_a_stall_is_reported_once_each_time(tmp_path: Path) -> None:
    run = run_of_job(tmp_path / "state", "stalled")
    with closing(Store(tmp_path / "state")) as store:
        watch = new_watch(store)
        watch.check()
        (run / FILE).write_text("not JSON")
        watch.check()
        assert store.outbox.of_job(1) == []
        assert watch.stalled == frozenset()
        (run / FILE).write_text(json.dumps({"stalled": "rank 1 stands\x1b[2J"}))
        for _ in range(3):
            watch.check()
        (notice,) = deliver(store)
        assert (notice.notice, notice.channel) == ("stalled", "webhook")
        assert "rank 1 stands" in notice.body
        later = new_watch(store)  # of the next daemon
        later.check()
        assert later.stalled == {1}
        assert deliver(store) == []
        (run / FILE).write_text("{}")
        later.check()
        assert later.stalled == frozenset()
        (run / FILE).write_text(json.dumps({"stalled": "rank 0 stands"}))
        later.check()
        assert [each.notice for each in deliver(store)] == ["stalled"]


def test_a_stall_that_ended_without_a_daemon_is_reported_again(tmp_path: Path) -> None:
    run = run_of_job(tmp_path / "state", "stalled")
    with closing(Store(tmp_path / "state")) as store:
        for text in ("rank 1 stands", None, "rank 0 stands"):
            (run / FILE).write_text(json.dumps({"stalled": text}))
            new_watch(store).check()
        assert len(deliver(store)) == 1, "the notice that waits is not sent twice"
        (run / FILE).write_text("{}")
        new_watch(store).check()
        (run / FILE).write_text(json.dumps({"stalled": "rank 1 stands"}))
        new_watch(store).check()
        assert len(deliver(store)) == 1


def test_the_first_step_is_reported_once(tmp_path: Path) -> None:
    run = run_of_job(tmp_path / "state", "first_step")
    with closing(Store(tmp_path / "state")) as store:
        watch = new_watch(store)
        watch.check()
        assert deliver(store) == []
        step = {"event": "step", "time": 61.0, "step": 1, "steps": 200, "loss": 5.25}
        (run / PROGRESS).write_text(json.dumps(step) + "\n")
        watch.check()
        (notice,) = deliver(store)
        tree = json.loads(notice.body)
        assert tree["title"] == "job 1 (fake) on box1 has done its first step"
        assert tree["details"] == ["step 1 of 200, loss 5.25"]
        watch.check()
        new_watch(store).check()
        assert deliver(store) == []


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_first_step_that_no_check_saw_is_reported_at_the_end(
    tmp_path: Path, steps: int, is_seen: bool
) -> None:
    run = run_of_job(tmp_path / "state", "first_step", "succeeded")
    reports = [
        {"event": "step", "time": 61.0 + n, "step": n, "steps": 2, "loss": 5.25}
        for n in range(1, steps + 1)
    ]
    with closing(Store(tmp_path / "state")) as store:
        notifier = JobNotifier(store, NotifyConfig(), no_guard)
        (run / PROGRESS).write_text("".join(f"{json.dumps(each)}\n" for each in reports))
        if is_seen:
            notifier.progress.check()
        assert len(deliver(store)) == (steps > 0 and is_seen)
        job, record = store.job(1), {"outcome": "finished", "progress": [None, *reports][-1]}
        with store.change(
            job, replace(job.standing, state="succeeded"), "end", now=90.0, attempt=1
        ) as change:
            change.attempt_ended(1, 90.0, record, None, None)
        kinds = ["first_step", "succeeded"] if steps and not is_seen else ["succeeded"]
        found = deliver(store)
        assert [each.notice for each in found] == kinds
        if len(found) == 2:
            tree = json.loads(found[0].body)
            assert tree["title"].endswith("has done its first step")
            assert tree["details"] == [f"step {steps} of 2, loss 5.25"]


def test_a_job_that_asks_for_neither_is_not_reported(tmp_path: Path) -> None:
    run = run_of_job(tmp_path / "state", "failed")
    with closing(Store(tmp_path / "state")) as store:
        (run / FILE).write_text(json.dumps({"stalled": "rank 1 stands"}))
        step = {"event": "step", "time": 61.0, "step": 1, "steps": 200}
        (run / PROGRESS).write_text(json.dumps(step) + "\n")
        watch = new_watch(store)
        watch.check()
        assert watch.stalled == {1}
        assert deliver(store) == []


PLACE = NoticeDestination(name="lab", url="https://ntfy.sh/lab", on=("memory_short", "disk_short"))


def test_each_shortage_is_reported_once_until_it_was_over_for_a_while(tmp_path: Path) -> None:
    short: dict[str, str] = {}
    now = [0.0]
    notices = JobNotices(NotifyConfig(places=(PLACE,)), "box1")

    def new_watch(store: Store) -> ShortageWatch:
        return ShortageWatch(store.outbox, notices, lambda: short, lambda: now[0])

    def taken(store: Store) -> list[str]:
        found = store.outbox.of_job(0)
        for each in found:
            store.outbox.delivered(each, 1.0)
        return [each.notice for each in found]

    with closing(Store(tmp_path)) as store:
        watch = new_watch(store)
        watch.check()
        assert taken(store) == []
        short["disk_short"] = "/state has 1.0 GiB free"
        watch.check()
        watch.check()
        new_watch(store).check()
        assert taken(store) == ["disk_short"]
        for change in (None, "/state has 0.9 GiB free"):  # it comes and goes
            short.pop("disk_short") if change is None else short.update(disk_short=change)
            watch.check()
            now[0] += CALM_SECONDS - 1
        assert taken(store) == []
        short.clear()
        watch = new_watch(store)  # it was over while the next daemon ran
        watch.check()
        now[0] += CALM_SECONDS
        watch.check()
        short["disk_short"] = "/state has 0.8 GiB free"
        watch.check()
        assert taken(store) == ["disk_short"]
        short["memory_short"] = "no job starts"
        watch.check()
        assert taken(store) == ["memory_short"]


def test_nobody_who_does_not_ask_is_told_of_a_shortage(tmp_path: Path) -> None:
    config = NotifyConfig(webhook="https://hooks.test/x", on=("failed",))
    with closing(Store(tmp_path)) as store:
        short = {"disk_short": "little", "memory_short": "little"}
        ShortageWatch(store.outbox, JobNotices(config), lambda: short).check()
        assert store.outbox.of_job(0) == []
