"""At least once, again later, and nothing waits: by senders that only pretend, and no clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.queue.tables.test_notice_outbox import a_notice
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.delivery import (
    AT_A_TIME,
    FIRST_SECONDS,
    MOST_SECONDS,
    Courier,
)
from zerotoolsd.monitoring.notifications.webhooks import NotDelivered
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice

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
        courier = Courier(store.outbox, NotifyConfig(), {"webhook": sender}, now=lambda: 1.0)
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
        courier = Courier(store.outbox, NotifyConfig(), {"webhook": sender}, now=lambda: clock[0])
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
        courier = Courier(store.outbox, NotifyConfig(), senders, now=lambda: 1.0)
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
        courier = Courier(store.outbox, NotifyConfig(), {"webhook": Told(divide)}, now=lambda: 1.0)
        store.outbox.put([a_notice("a"), a_notice("b", channel="pigeon")], 1.0)
        courier.begin_due()
        await courier.settle()

    asyncio.run(story())
    assert [each.trouble for each in store.outbox.of_job(1)] == [
        "ZeroDivisionError: division by zero",
        "nothing delivers by pigeon",
    ]
