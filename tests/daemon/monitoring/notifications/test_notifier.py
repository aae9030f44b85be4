"""From a job's end to whoever is told, in an engine of the test's own event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, leave_attempt, running
from tests.daemon.queue.tables.test_notice_outbox import a_notice
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotoolsd.config.config_tables import NotifyConfig
from zerotoolsd.monitoring.notifications.notice_text import JobNotices
from zerotoolsd.monitoring.notifications.notifier import (
    AT_A_TIME,
    FIRST_SECONDS,
    MOST_SECONDS,
    NoticeDelivery,
    StallWatch,
)
from zerotoolsd.monitoring.notifications.webhooks import NotDelivered
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import FILE


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


@contextmanager
def no_guard(job_id: int, doing: str) -> Iterator[Callable[[], None]]:
    yield lambda: None


def test_a_stall_is_told_once(tmp_path: Path) -> None:
    notify = NotifySpec(on=("stalled",), webhook="https://hooks.test/x")
    run = leave_attempt(tmp_path / "state", replace(make_job(""), notify=notify))
    with closing(Store(tmp_path / "state")) as store:
        watch = StallWatch(store, JobNotices(NotifyConfig(), "box1"), no_guard)
        watch.look()
        (run / FILE).write_text("not JSON")
        watch.look()
        assert store.outbox.of_job(1) == []
        assert watch.stalled == frozenset()
        (run / FILE).write_text(json.dumps({"stalled": "rank 1 stands\x1b[2J"}))
        for _ in range(3):
            watch.look()
        StallWatch(store, JobNotices(NotifyConfig(), "box1"), no_guard).look()  # of the next daemon
        assert watch.stalled == {1}
        (notice,) = store.outbox.of_job(1)
        (run / FILE).write_text("{}")
        watch.look()
        assert watch.stalled == frozenset()
    assert (notice.notice, notice.channel) == ("stalled", "webhook")


DAY = 86400.0


class Told:
    """Remembers what it was given; `answer` may raise."""

    def __init__(self, answer: Callable[[Notice], None] = lambda notice: None) -> None:
        self.answer = answer
        self.keys: list[str] = []

    async def send(self, notice: Notice) -> None:
        self.keys.append(notice.key)
        self.answer(notice)


class Hanging:
    """Never answers."""

    async def send(self, notice: Notice) -> None:
        await asyncio.Event().wait()


def refusing(notice: Notice) -> None:
    raise NotDelivered("status 500")


def divide(notice: Notice) -> None:
    raise ZeroDivisionError("division by zero")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        yield opened


def test_each_is_told_once_where_that_succeeds(store: Store) -> None:
    sender = Told()

    async def story() -> None:
        courier = NoticeDelivery(store.outbox, NotifyConfig(), {"webhook": sender}, now=lambda: 1.0)
        store.outbox.put([a_notice("a"), a_notice("b")], 1.0)
        for _ in range(3):
            courier.begin_due()
            await courier.settle()

    asyncio.run(story())
    assert sender.keys == ["a", "b"]
    assert store.outbox.counts()["delivered"] == 2


def test_a_receiver_that_fails_for_a_day_is_tried_ever_later_and_given_up(store: Store) -> None:
    sender, clock = Told(refusing), [0.0]

    async def story() -> list[float]:
        courier = NoticeDelivery(
            store.outbox, NotifyConfig(), {"webhook": sender}, now=lambda: clock[0]
        )
        store.outbox.put([a_notice("a")], 0.0)
        times = []
        while (due := store.outbox.next_due()) is not None:
            clock[0] = due
            times.append(due)
            courier.begin_due()
            await courier.settle()
        return times

    times = asyncio.run(story())
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert 0.8 * FIRST_SECONDS <= waits[0] <= FIRST_SECONDS
    assert 0.8 * MOST_SECONDS <= waits[-1] <= MOST_SECONDS
    assert times[-2] < DAY <= times[-1] < DAY + MOST_SECONDS
    assert {*sender.keys} == {"a"}
    assert 20 < len(times) < 45
    assert store.outbox.counts() == {"delivered": 0, "dropped": 0, "expired": 1, "waiting": 0}


def test_a_receiver_that_hangs_keeps_nobody_else_waiting(store: Store) -> None:
    sender = Told()

    async def story() -> None:
        senders = {"webhook": Hanging(), "command": sender}
        courier = NoticeDelivery(store.outbox, NotifyConfig(), senders, now=lambda: 1.0)
        store.outbox.put([a_notice(f"hangs {number}") for number in range(50)], 1.0)
        store.outbox.put([a_notice("theirs", uid=2, channel="command")], 1.0)
        for _ in range(20):
            courier.begin_due()
            await asyncio.sleep(0)
        assert len(courier._tasks) <= AT_A_TIME
        courier.cancel()
        await courier.settle()

    asyncio.run(story())
    assert sender.keys == ["theirs"]
    assert store.outbox.counts()["waiting"] == 50


def test_an_odd_notice_ends_nothing(store: Store) -> None:
    async def story() -> None:
        courier = NoticeDelivery(
            store.outbox, NotifyConfig(), {"webhook": Told(divide)}, now=lambda: 1.0
        )
        store.outbox.put([a_notice("a"), a_notice("b", channel="pigeon")], 1.0)
        courier.begin_due()
        await courier.settle()

    asyncio.run(story())
    assert [each.trouble for each in store.outbox.of_job(1)] == [
        "ZeroDivisionError: division by zero",
        "nothing delivers by pigeon",
    ]
