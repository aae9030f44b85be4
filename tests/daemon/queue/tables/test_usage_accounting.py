"""GPU-seconds of users, booked by the hour, that no restart loses and no record hides."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.queue.test_store import Open, attempt, submit
from zerotoolsd.config.config_tables import SharesConfig
from zerotoolsd.queue import clocks
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.fair_share import UsageReport
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.usage_accounting import book_end, book_running, by_hour

HOUR = 3600.0


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(Store(path)))


def test_what_was_used_is_put_into_its_hours() -> None:
    assert by_hour(2.5 * HOUR, 0.0) == {}
    assert by_hour(2.5 * HOUR, HOUR) == {1: 0.5 * HOUR, 2: 0.5 * HOUR}
    assert by_hour(2 * HOUR, HOUR) == {1: HOUR}


def begin(store: Store, began: Moment, *gpus: str, uid: int = 5, part: float = 1.0) -> None:
    job, _ = submit(store, uid=uid)
    with store.change(job, JobStatus(state="launching"), "admit", now=1, attempt=1) as change:
        row = replace(attempt(job, gpus=gpus), gpu_part=part)
        change.add_attempt(row, None if part == 1 else 10)
    job = store.job(job.id)
    with store.change(job, JobStatus(state="running"), "started", now=1, attempt=1) as change:
        change.attempt_started(1, began)


def end(store: Store, job_id: int, ended: float) -> None:
    job = store.job(job_id)
    with store.change(job, JobStatus(state="failed"), "gave_up", now=ended) as change:
        change.attempt_ended(1, ended, {}, None)


def in_all(store: Store) -> dict[int, float]:
    return {uid: round(seconds) for uid, seconds in store.gpu_use.in_all().items()}


def test_two_gpus_count_twice_and_a_share_for_its_part(tmp_path: Path, opened: Open) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    began = Moment(now.time - 600, (now.clock or 0) - 600, now.boot_id)
    begin(store, began, "GPU-1", "GPU-2")
    begin(store, began, "GPU-3", uid=6, part=0.25)
    begin(store, began)  # of the CPU
    for job_id in (1, 2, 3):
        end(store, job_id, now.time)
    assert in_all(store) == {5: 1200, 6: 150}


def test_a_restart_loses_nothing_and_nothing_is_booked_twice(tmp_path: Path, opened: Open) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    began = Moment(now.time - 100, (now.clock or 0) - 100, now.boot_id)
    begin(store, began, "GPU-1")
    store.book_gpu_use()
    store.book_gpu_use()
    assert in_all(store) == {5: 100}
    assert store.gpu_use.bookings > 0
    store.close()
    store = opened(tmp_path)
    assert in_all(store) == {5: 100}
    end(store, 1, clocks.read_clocks().time)
    assert in_all(store) == {5: 100}


@pytest.mark.parametrize(("unbooked", "whole"), [(60, 1000), (500, 500)])
def test_a_record_that_claims_an_early_end_hides_nothing_while_a_daemon_runs(
    tmp_path: Path, opened: Open, unbooked: int, whole: int
) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    clock = now.clock or 0
    begin(store, Moment(now.time - 1000, clock - 1000, now.boot_id), "GPU-1")
    sql = store._sql
    assert book_running(sql, Moment(now.time - unbooked, clock - unbooked, now.boot_id))
    book_end(sql, 1, 1, now, now.time - 900)
    assert in_all(store) == {5: whole}


def test_a_calendar_that_was_set_books_what_the_clock_says(tmp_path: Path, opened: Open) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    begin(store, Moment(now.time - 9e6, (now.clock or 0) - 50, now.boot_id), "GPU-1")
    store.book_gpu_use()
    assert in_all(store) == {5: 50}


def test_who_used_less_for_their_weight_goes_first_and_the_view_says_by_how_much(
    tmp_path: Path, opened: Open
) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    for uid, seconds in ((5, 3600), (6, 7200)):
        began = Moment(now.time - seconds, (now.clock or 0) - seconds, now.boot_id)
        begin(store, began, f"GPU-{uid}", uid=uid)
    store.book_gpu_use()
    even = UsageReport(store, SharesConfig(half_life="30d"))
    assert even.ranks({5, 6, 7}, now.time) == {7: 0, 5: 1, 6: 2}
    assert even.ranks({5}, now.time) == {}
    assert UsageReport(store, SharesConfig(fair=False)).ranks({5, 6}, now.time) == {}
    weighed = UsageReport(store, SharesConfig(half_life="30d", weights={"6": 4.0}))
    assert weighed.ranks({5, 6}, now.time) == {6: 0, 5: 1}
    first, second = weighed.view((), now.time)
    assert (first.uid, second.uid) == (6, 5)
    assert (first.share, round(first.used, 2)) == (0.8, 0.67)
    assert second.gpu_seconds_in_all == pytest.approx(3600, abs=1)
    assert second.factor == pytest.approx(0.5 ** (second.used / 0.2))


def test_what_was_used_long_ago_is_read_once_and_what_is_new_is_seen(
    tmp_path: Path, opened: Open
) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    hour = int(now.time // 3600)
    for uid, ago, seconds in ((5, 24 * 14, 8e4), (6, 1, 1e4)):
        store._sql("INSERT INTO gpu_use VALUES (?, ?, ?)", (uid, hour - ago, seconds))
    shares = UsageReport(store, SharesConfig())
    assert shares.ranks({5, 6}, now.time) == {6: 0, 5: 1}
    used = {each.uid: each.gpu_seconds for each in shares.view((), now.time)}
    assert used[5] == pytest.approx(2e4, rel=0.01)
    begin(store, Moment(now.time - 9e4, (now.clock or 0) - 9e4, now.boot_id), "GPU-1", uid=6)
    store.book_gpu_use()
    later = now.time + 3 * 86400
    assert shares.ranks({5, 6}, later) == {5: 0, 6: 1}
    used = {each.uid: each.gpu_seconds for each in shares.view((), later)}
    assert used[5] == pytest.approx(2e4 * 2 ** (-3 / 7), rel=0.01)


def test_a_clock_that_was_ahead_hides_nothing_that_is_used_after_it_was_set_back(
    tmp_path: Path, opened: Open
) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    hour, ahead = int(now.time // 3600), 900 * 24
    rows = "INSERT INTO gpu_use VALUES (?, ?, ?)"
    store._sql(rows, (6, hour + ahead, 1e3))
    shares = UsageReport(store, SharesConfig())
    assert shares.ranks({5, 6}, now.time + ahead * 3600) == {5: 0, 6: 1}
    store._sql(rows, (5, hour - 1, 5e5))
    store._sql(rows, (6, hour - 1, 1e6))
    used = {each.uid: each.gpu_seconds for each in shares.view((), now.time)}
    assert used == {5: pytest.approx(5e5, rel=0.01), 6: pytest.approx(1e6, rel=0.01)}


def test_a_damaged_row_keeps_nobody_else_from_being_booked(tmp_path: Path, opened: Open) -> None:
    store, now = opened(tmp_path), clocks.read_clocks()
    began = Moment(now.time - 600, (now.clock or 0) - 600, now.boot_id)
    begin(store, began, "GPU-1")
    begin(store, began, "GPU-2", uid=6)
    with closing(sqlite3.connect(tmp_path / "zerotools.db")) as db, db:
        db.execute("UPDATE attempt SET gpu_uuids = '{broken' WHERE job_id = 1")
    store.book_gpu_use()
    assert in_all(store) == {6: 600}
    end(store, 1, now.time)
    assert store.job(1).state == "failed"
