"""The outbox: bounded, fair, and one with the change that it tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice


def a_notice(key: str = "k", **changes: Any) -> Notice:
    usual: dict[str, Any] = {
        "key": key,
        "uid": 1,
        "job_id": 1,
        "notice": "failed",
        "channel": "webhook",
        "target": "https://host/",
        "body": "{}",
        "created": 0.0,
        "next_at": 0.0,
    }
    return Notice(**{**usual, **changes})


def put(store: Store, notices: Iterable[Notice]) -> None:
    with store.transactions.one():
        store.outbox.add(notices)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        yield opened


def test_a_change_and_what_is_told_of_it_are_one(store: Store, tmp_path: Path) -> None:
    job, _ = store.submit(
        uid=1,
        name="x",
        spec=make_job(""),
        output_dir=None,
        default_output=tmp_path,
        idempotency_key=None,
        now=1.0,
    )
    store.tell = lambda job, after, event, attempt, now: [a_notice(f"{event}-{after.state}")]
    with pytest.raises(ZeroDivisionError), store.change(job, JobStatus(state="held"), "x", now=2.0):
        raise ZeroDivisionError
    assert store.outbox.of_job(1) == []
    with store.change(job, JobStatus(state="held"), "hold", now=2.0):
        pass
    assert [each.key for each in store.outbox.of_job(1)] == [f"{store.last_change}-held"]


def test_the_same_notice_is_there_once(store: Store) -> None:
    put(store, [a_notice(), a_notice()])
    put(store, [a_notice(body="other")])
    assert [each.body for each in store.outbox.of_job(1)] == ["{}"]


def test_the_oldest_of_a_user_go_first_and_are_counted(store: Store) -> None:
    store.outbox.most_per_user, store.outbox.most = 3, 5
    put(store, [a_notice("other", uid=2)])
    put(store, [a_notice(f"{number}") for number in range(10)])
    assert [each.key for each in store.outbox.of_job(1)] == ["other", "7", "8", "9"]
    put(store, [a_notice(f"more {number}", uid=number) for number in (3, 4)])
    assert [each.key for each in store.outbox.of_job(1)] == ["7", "8", "9", "more 3", "more 4"]
    assert store.outbox.counts() == {"delivered": 0, "dropped": 8, "expired": 0, "waiting": 5}


def test_nobody_keeps_others_waiting(store: Store) -> None:
    put(store, [a_notice(f"{number}", job_id=number) for number in range(50)])
    put(store, [a_notice("theirs", uid=2, job_id=50)])
    assert [each.key for each in store.outbox.due(1.0, 8)] == ["0", "1", "theirs"]
    assert store.outbox.due(-1.0, 8) == []
    put(store, [a_notice("elsewhere", target="https://other/")])
    assert [each.key for each in store.outbox.due(1.0, 8)] == ["0", "theirs", "elsewhere"]


def test_recipients_that_refused_a_notice_come_last(store: Store) -> None:
    """Two addresses hang, with many notices each; a user gets two deliveries at a time."""
    hang = [f"https://hangs-{number}/" for number in (1, 2)]
    for number in range(5):
        put(store, [a_notice(f"{url} {number}", job_id=number, target=url) for url in hang])
    put(store, [a_notice("elsewhere", target="https://other/")])
    first = store.outbox.due(1.0, 8)
    assert [each.key for each in first] == [f"{url} 0" for url in hang]
    for each in first:
        store.outbox.failed(each, 50.0, "no answer")
    assert [each.key for each in store.outbox.due(1.0, 8)] == ["elsewhere", f"{hang[0]} 1"]
    put(store, [a_notice("theirs", uid=2, job_id=5)])
    assert [each.key for each in store.outbox.due(1.0, 2)] == ["elsewhere", "theirs"]


def test_a_clock_that_is_set_back_keeps_no_notice_waiting(store: Store) -> None:
    put(store, [a_notice("a", next_at=9e9), a_notice("b", job_id=2, next_at=4600.0)])
    assert [each.key for each in store.outbox.due(1000.0, 8)] == ["a"]


def test_a_recipient_gets_the_notices_of_a_job_in_order(store: Store) -> None:
    put(store, [a_notice("first"), a_notice("last"), a_notice("of job 2", job_id=2)])
    put(store, [a_notice("elsewhere", target="https://other/"), a_notice("run", channel="command")])
    others = ["elsewhere", "of job 2", "run"]

    def due() -> list[str]:
        return sorted(each.key for each in store.outbox.due(1.0, 99))

    assert due() == sorted(["first", *others])
    first = store.outbox.of_job(1)[0]
    for _ in range(2):
        store.outbox.failed(first, 50.0, "no answer")
        assert due() == others, "the last one waits with the first one"
    store.outbox.failed(first, 50.0, "no answer")
    assert due() == sorted(["last", *others]), "one that is always refused blocks no other"


def test_a_delivered_notice_makes_the_next_one_due(store: Store) -> None:
    put(store, [a_notice("first"), a_notice("last")])
    (first,) = store.outbox.due(1.0, 8)
    store.outbox.delivered(first, 1.0)
    assert [each.key for each in store.outbox.due(1.0, 8)] == ["last"]


def test_a_recipient_that_accepts_a_notice_gets_those_that_it_refused_at_once(store: Store) -> None:
    put(store, [a_notice("old"), a_notice("elsewhere", target="https://other/")])
    put(store, [a_notice("new", job_id=2), a_notice("later", job_id=3, next_at=99.0)])
    old, elsewhere = store.outbox.of_job(1)
    for each in (old, elsewhere):
        store.outbox.failed(each, 600.0, "no answer")
    (new,) = store.outbox.due(5.0, 8)
    store.outbox.delivered(new, 5.0)
    assert [each.key for each in store.outbox.due(5.0, 8)] == ["old"]


def test_what_becomes_of_a_notice(store: Store) -> None:
    put(store, [a_notice("a"), a_notice("b"), a_notice("c")])
    first, second, third = store.outbox.of_job(1)
    store.outbox.delivered(first, 1.0)
    store.outbox.expired(second)
    store.outbox.failed(third, 50.0, "status 500" * 99)
    (left,) = store.outbox.of_job(1)
    assert (left.key, left.tries, left.next_at, len(left.trouble or "")) == ("c", 1, 50.0, 300)
    assert store.outbox.counts() == {"delivered": 1, "dropped": 0, "expired": 1, "waiting": 1}
