"""Shortages of the machine: each is reported once until it has been over for a while."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig
from zerotoolsd.monitoring.notifications.make_notices import JobNotices
from zerotoolsd.monitoring.notifications.shortage_watch import CALM_SECONDS, ShortageWatch
from zerotoolsd.queue.store import Store

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
