"""The file may be lost, damaged or full; what is in it is bounded."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.monitoring.history_file import (
    DAMAGED,
    DAY,
    FILE,
    HOUR,
    TIERS,
    AttemptPeak,
    Bucket,
    HistoryFile,
    MeanAndMost,
    bucket_of,
    combined_bucket,
    rolled_up,
    step_for,
    tier_for,
)

NOW = 1_800_000_000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[HistoryFile]:
    with closing(HistoryFile(tmp_path)) as opened:
        yield opened


def seconds(file: HistoryFile, begin: int, count: int, **series: float) -> None:
    file.add([bucket_of(begin + n, series or {"x": float(n)}) for n in range(count)], [])


def test_seconds_become_tens_and_minutes_and_each_is_dropped_in_its_time(
    file: HistoryFile,
) -> None:
    seconds(file, NOW, 125)
    file.roll_up(NOW + 125)
    assert len(file.buckets(0, 0, 2**40)) == 125
    assert [b.start - NOW for b in file.buckets(1, 0, 2**40)] == list(range(0, 120, 10))
    assert [b.series["x"] for b in file.buckets(2, 0, 2**40)] == [
        MeanAndMost(29.5, 59.0),
        MeanAndMost(89.5, 119.0),
    ]
    file.roll_up(NOW + 125)  # again: nothing is counted twice
    assert len(file.buckets(1, 0, 2**40)) == 12
    file.roll_up(NOW + 2 * HOUR)
    assert [len(file.buckets(tier, 0, 2**40)) for tier in range(4)] == [0, 13, 3, 1]
    file.roll_up(NOW + 2 * DAY)
    assert [len(file.buckets(tier, 0, 2**40)) for tier in range(4)] == [0, 0, 3, 1]
    file.roll_up(NOW + 400 * DAY)
    assert [len(file.buckets(tier, 0, 2**40)) for tier in range(4)] == [0, 0, 0, 0]


def test_a_daemon_that_was_away_goes_on_where_it_was(tmp_path: Path) -> None:
    with closing(HistoryFile(tmp_path)) as first:
        seconds(first, NOW, 15)
        first.roll_up(NOW + 15)
    with closing(HistoryFile(tmp_path)) as second:
        seconds(second, NOW + 15, 10)
        second.roll_up(NOW + 40)
        assert [b.series["x"].most for b in second.buckets(1, 0, 2**40)] == [9.0, 14.0, 9.0]


def test_a_clock_that_was_wrong_for_a_while_stops_nothing(file: HistoryFile) -> None:
    seconds(file, NOW + 1000 * DAY, 60)
    file.roll_up(NOW + 1000 * DAY + 60)
    seconds(file, NOW, 30)
    file.roll_up(NOW + 30)
    assert [b.start - NOW for b in file.buckets(1, 0, 2**40)] == [0, 10, 20]
    assert [b.start - NOW for b in file.buckets(2, 0, 2**40)] == []


def test_a_clock_that_may_be_wrong_removes_nothing(file: HistoryFile) -> None:
    seconds(file, NOW, 60)
    file.roll_up(NOW + 1000 * DAY, NOW + 60)
    file.roll_up(NOW - 3000 * DAY, is_sure=False)
    assert [b.start - NOW for b in file.buckets(1, 0, 2**40)] == [0, 10, 20, 30, 40, 50]


def test_series_come_and_go(file: HistoryFile) -> None:
    seconds(file, NOW, 1, a=1.0)
    seconds(file, NOW + 1, 1, a=2.0, b=3.0)
    found = [bucket.series for bucket in file.buckets(0, NOW, NOW + 5)]
    assert [sorted(series) for series in found] == [["a"], ["a", "b"]]
    file.roll_up(NOW + HOUR + 1)
    assert file.buckets(0, 0, 2**40)[0].series["b"] == MeanAndMost(3.0, 3.0)


def test_the_larger_number_of_a_peak_stays_and_names_are_not_lost(file: HistoryFile) -> None:
    file.add([], [AttemptPeak(job_id=3, attempt=1, host_bytes=5, gpu_bytes=9, uid=7, name="x")])
    file.add([], [AttemptPeak(job_id=3, attempt=1, host_bytes=8, gpu_bytes=2, ended=4.5)], seen=12)
    whole = {"uid": 7, "name": "x", "ended": 4.5, "host_bytes": 8, "gpu_bytes": 9}
    assert file.peaks(3, 10) == [AttemptPeak(job_id=3, attempt=1, **whole)]  # type: ignore[arg-type]
    assert file.peaks(4, 10) == []
    assert file.last_event == 12


def test_peaks_outlive_every_bucket(file: HistoryFile) -> None:
    file.add([bucket_of(NOW, {"x": 1.0})], [AttemptPeak(job_id=1, attempt=1, host_bytes=5)])
    file.roll_up(NOW + 1000 * DAY)
    assert file.peaks(None, 10)[0].host_bytes == 5


@pytest.mark.parametrize(
    "damage",
    [
        b"this is no database",
        b"",
        b"SQLite format 3\0" + b"\xff" * 5000,
    ],
)
def test_what_is_no_history_is_set_aside(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    with closing(HistoryFile(tmp_path)) as file:
        seconds(file, NOW, 3)
        assert len(file.buckets(0, 0, 2**40)) == 3
        if damage:
            assert file.was_damaged
            assert (tmp_path / DAMAGED).read_bytes() == damage


def test_a_page_that_was_overwritten_is_noticed_at_the_start(tmp_path: Path) -> None:
    with closing(HistoryFile(tmp_path)) as file:
        for begin in range(0, 3000, 500):
            seconds(file, NOW + begin, 500)
    data = bytearray((tmp_path / FILE).read_bytes())
    data[8192 : 8192 + 4096] = b"\xaa" * 4096
    (tmp_path / FILE).write_bytes(data)
    with closing(HistoryFile(tmp_path)) as file:
        assert file.was_damaged
        assert file.buckets(0, 0, 2**40) == []


def test_a_file_of_other_columns_is_set_aside(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("CREATE TABLE peak (job_id INTEGER)")
    with closing(HistoryFile(tmp_path)) as file:
        assert "no such column" in str(file.was_damaged)


def test_one_that_is_out_of_reach_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(sqlite3.OperationalError):
        HistoryFile(tmp_path)
    assert (tmp_path / FILE).is_dir()


def test_a_bucket_that_cannot_be_read_says_nothing(file: HistoryFile, tmp_path: Path) -> None:
    seconds(file, NOW, 2)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("UPDATE bucket SET data = x'00' WHERE start = ?", (NOW,))
    assert [dict(b.series) for b in file.buckets(0, NOW, NOW + 2)] == [
        {},
        {"x": MeanAndMost(1.0, 1.0)},
    ]


def test_a_full_file_loses_its_oldest_and_stays_within_its_bound(tmp_path: Path) -> None:
    most = 1 << 20
    names = {f"series.{n}": 1.0 for n in range(100)}
    with closing(HistoryFile(tmp_path, most)) as file:
        for begin in range(0, 3000, 100):
            file.add([bucket_of(NOW + begin + n, names) for n in range(100)], [])
        kept = file.buckets(0, 0, 2**40)
    assert kept[-1].start == NOW + 2999
    assert NOW < kept[0].start < NOW + 2900
    assert (tmp_path / FILE).stat().st_size <= most


numbers = st.floats(-1e12, 1e12)


def test_what_is_no_number_is_left_out() -> None:
    bucket = bucket_of(12.9, {"a": 1.0, "b": math.nan, "c": math.inf})
    assert bucket == Bucket(12, {"a": MeanAndMost(1.0, 1.0)})


def test_a_series_that_some_lack_is_of_the_others() -> None:
    first = Bucket(20, {"a": MeanAndMost(1, 9), "b": MeanAndMost(5, 5)})
    second = Bucket(21, {"a": MeanAndMost(3, 4)})
    assert combined_bucket(20, [first, second]).series == {
        "a": MeanAndMost(2, 9),
        "b": MeanAndMost(5, 5),
    }


@given(st.lists(st.tuples(st.integers(0, 500), numbers), max_size=60), st.sampled_from([10, 60]))
def test_each_bucket_has_the_most_of_its_seconds_and_none_is_in_two(
    samples: list[tuple[int, float]], step: int
) -> None:
    seconds = [bucket_of(time, {"x": value}) for time, value in sorted(samples)]
    found = rolled_up(seconds, step)
    starts = [bucket.start for bucket in found]
    assert starts == sorted({time // step * step for time, _ in samples})
    for bucket in found:
        values = [v for time, v in samples if bucket.start <= time < bucket.start + step]
        x = bucket.series["x"]
        assert x.most == max(values)
        assert x.mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-3)


@given(st.integers(1, 400 * DAY), st.integers(1, 1000))
def test_an_answer_has_at_most_its_points_and_is_made_of_few_buckets(
    seconds: int, points: int
) -> None:
    tier = TIERS[tier_for(seconds, points)]
    step = step_for(tier, seconds, points)
    assert step % tier.step_seconds == 0
    assert seconds / step <= points
    if seconds <= TIERS[-1].span_seconds:
        assert tier.span_seconds >= seconds
    if HOUR < seconds <= DAY:
        assert tier.step_seconds in (10, 60, 600)


def test_a_short_time_is_told_by_seconds_and_a_long_one_by_minutes() -> None:
    assert [TIERS[tier_for(s, 240)].step_seconds for s in (60, HOUR, 6 * HOUR, DAY, 30 * DAY)] == [
        *(1, 10, 60, 60, 600)
    ]
