"""From a job's end to whoever is told, in an engine of the test's own event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.monitoring.notifications.test_watch_for_notices import no_guard
from tests.daemon.queue.tables.test_notice_outbox import a_notice, put
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig
from zerotoolsd.monitoring.notifications import deliver_notices
from zerotoolsd.monitoring.notifications.deliver_notices import (
    AT_A_TIME,
    FIRST_SECONDS,
    MOST_SECONDS,
    JobNotifier,
    NoticeDelivery,
    NoticeSender,
)
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice


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
            assert left["place"] is None  # the address may be a secret
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


def test_a_full_disk_is_reported_to_the_places(tmp_path: Path) -> None:
    place = NoticeDestination(
        name="mail", to=("me@example.org",), on=("disk_short", "memory_short")
    )
    notify = NotifyConfig(places=(place,), disk_free="1000000GiB", sendmail="/bin/false")
    config = replace(CONFIG, notify=notify)

    async def story() -> None:
        async with running(tmp_path / "state", config=config) as it:
            it.engine.notifier.shortages.check()
            (notice,) = it.engine.store.outbox.of_job(0)
            assert (notice.notice, notice.target) == ("disk_short", "mail")
            assert "less than 1e+06 GiB (notify.disk_free)" in notice.body

    asyncio.run(story())


DAY = 86400.0


class Told:
    """Remembers what it was given; `answer` may raise."""

    def __init__(self, answer: Callable[[Notice], None] = lambda notice: None) -> None:
        self.answer = answer
        self.keys: list[str] = []

    async def send(self, notice: Notice) -> str:
        self.keys.append(notice.key)
        self.answer(notice)
        return "status 200"


class Hanging:
    """Never answers."""

    async def send(self, notice: Notice) -> str:
        await asyncio.Event().wait()
        return ""


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
        put(store, [a_notice("a"), a_notice("b")])
        for _ in range(3):
            courier.begin_due()
            await courier.settle()

    asyncio.run(story())
    assert sender.keys == ["a", "b"]
    assert store.outbox.counts()["delivered"] == 2


def test_a_slow_first_notice_of_a_job_leaves_before_the_next_one(store: Store) -> None:
    sent = list[str]()

    async def story() -> None:
        answers = asyncio.Event()

        class Slow:
            async def send(self, notice: Notice) -> str:
                sent.append(notice.key)
                await answers.wait()
                return ""

        courier = NoticeDelivery(store.outbox, NotifyConfig(), {"webhook": Slow()}, now=lambda: 1.0)
        put(store, [a_notice("first step"), a_notice("succeeded"), a_notice("other", job_id=2)])
        for _ in range(3):
            courier.begin_due()
            await asyncio.sleep(0)
        assert sent == ["first step", "other"]
        answers.set()
        await courier.settle()
        courier.begin_due()
        await courier.settle()

    asyncio.run(story())
    assert sent == ["first step", "other", "succeeded"]


def test_a_receiver_that_fails_for_a_day_is_tried_ever_later_and_given_up(store: Store) -> None:
    sender, clock = Told(refusing), [0.0]

    async def story() -> list[float]:
        courier = NoticeDelivery(
            store.outbox, NotifyConfig(), {"webhook": sender}, now=lambda: clock[0]
        )
        put(store, [a_notice("a")])
        times = []
        while waiting := store.outbox.of_job(1):
            clock[0] = waiting[0].next_at
            times.append(clock[0])
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
        senders: dict[str, NoticeSender] = {"webhook": Hanging(), "command": sender}
        courier = NoticeDelivery(store.outbox, NotifyConfig(), senders, now=lambda: 1.0)
        put(store, [a_notice(f"hangs {number}", job_id=number) for number in range(50)])
        for _ in range(20):
            courier.begin_due()
            await asyncio.sleep(0)
        put(store, [a_notice(f"uid {uid}", uid=uid, channel="command") for uid in (1, 2)])
        for _ in range(20):
            courier.begin_due()
            await asyncio.sleep(0)
        assert len(courier._tasks) <= AT_A_TIME
        courier.cancel()
        await courier.settle()

    asyncio.run(story())
    assert sender.keys == ["uid 1", "uid 2"], "other recipients of the user, and other users"
    assert store.outbox.counts()["waiting"] == 50


def test_a_late_notice_has_its_age(store: Store) -> None:
    texts, clock = list[str](), [0.0]

    def answer(notice: Notice) -> None:
        texts.append(json.loads(notice.body)["text"])
        if clock[0] < 600.0:
            raise NotDelivered("status 503")

    async def story() -> None:
        senders = {"webhook": Told(answer)}
        courier = NoticeDelivery(store.outbox, NotifyConfig(), senders, now=lambda: clock[0])
        title = "job 7 (tiny) on box1 has failed"
        put(store, [a_notice(body=json.dumps({"title": title, "text": f"{title}: x", "id": "k"}))])
        while waiting := store.outbox.of_job(1):
            clock[0] = waiting[0].next_at
            courier.begin_due()
            await courier.settle()

    asyncio.run(story())
    assert texts[0] == "job 7 (tiny) on box1 has failed: x"
    assert re.fullmatch(r"job 7 \(tiny\) on box1 has failed \(1\d min ago\): x", texts[-1])


def test_an_odd_notice_ends_nothing(store: Store) -> None:
    async def story() -> None:
        courier = NoticeDelivery(
            store.outbox, NotifyConfig(), {"webhook": Told(divide)}, now=lambda: 1.0
        )
        put(store, [a_notice("a"), a_notice("b", channel="pigeon")])
        courier.begin_due()
        await courier.settle()

    asyncio.run(story())
    assert [each.trouble for each in store.outbox.of_job(1)] == [
        "ZeroDivisionError: division by zero",
        "this daemon has no channel pigeon for notifications",
    ]


def test_a_service_that_asks_to_wait_gets_nothing_until_then(store: Store) -> None:
    """Neither the refused notice nor a newer one to the same address is tried earlier, also by the
    next daemon; a notice to another address is."""

    def too_fast(notice: Notice) -> None:
        raise NotDelivered("status 429", retry_after=90.0)

    slow, fast, clock = Told(too_fast), Told(), [1000.0]
    senders = {"webhook": slow, "command": fast}

    async def story() -> None:
        for _ in range(2):  # two daemons
            courier = NoticeDelivery(store.outbox, NotifyConfig(), senders, now=lambda: clock[0])
            for job, key in ((1, "a"), (2, "b")):
                notice = a_notice(key, job_id=job, created=1000.0)
                put(store, [notice, a_notice(f"{key}!", job_id=job, channel="command")])
                courier.begin_due()
                await courier.settle()
            clock[0] += 45.0

    asyncio.run(story())
    assert slow.keys == ["a"]
    assert {*fast.keys} == {"a!", "b!"}
    waits = {e.key: e.next_at - 1000.0 for job in (1, 2) for e in store.outbox.of_job(job)}
    assert waits == {"a": 90.0, "b": 90.0}


def test_a_clock_that_is_set_back_ends_the_wait_that_a_service_asked_for(store: Store) -> None:
    def too_fast(notice: Notice) -> None:
        raise NotDelivered("status 429", retry_after=90.0)

    slow, clock = Told(too_fast), [1e6]

    async def story() -> None:
        courier = NoticeDelivery(
            store.outbox, NotifyConfig(), {"webhook": slow}, now=lambda: clock[0]
        )
        for now in (1e6, 1000.0):
            clock[0] = now
            put(store, [a_notice(f"at {now:g}", job_id=int(now), created=now, next_at=now)])
            courier.begin_due()
            await courier.settle()

    asyncio.run(story())
    assert slow.keys == ["at 1e+06", "at 1e+06", "at 1000"]


def test_an_error_of_the_watches_does_not_end_the_deliveries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver_notices, "OUTBOX_SECONDS", 0.0)
    monkeypatch.setattr(deliver_notices, "WATCH_SECONDS", 0.0)
    asked: list[int] = []

    def broken() -> dict[str, str]:
        asked.append(1)
        raise ZeroDivisionError

    place = NoticeDestination(name="mail", to=("me@example.org",))

    async def story() -> None:
        it = JobNotifier(store, NotifyConfig(places=(place,)), no_guard, shortages=broken)
        task = asyncio.create_task(it.run_forever())

        async def again() -> bool:
            return len(asked) > 1 or task.done()

        await wait_async(again, "a second look at the machine")
        assert not task.done()
        task.cancel()

    asyncio.run(story())
