from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.top.reading.job_reports import CurveSummary, JobReports, LongCurve, ReportReader
from zerotools.jobs.client.daemon_client import DaemonClient


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {**STEP, "step": number, "loss": 10.0 - number / 1000, **changes}


def put(service: FakeService, job_id: int, *records: object, attempt: int = 1) -> None:
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    service.write(job_id, "progress.jsonl", data, attempt=attempt)


def with_attempts(service: FakeService, count: int) -> None:
    ended = [an_attempt(n, state="ended", ended=9.0) for n in range(1, count)]
    attempts = (*ended, an_attempt(count))
    service.views[3] = a_view(3, a_job(), state="running", attempts=attempts)


def read(reader: ReportReader, client: DaemonClient, times: int = 1) -> JobReports:
    for _ in range(times):
        found = reader.read(client.job(3))
    return found


def test_it_reads_what_is_new(service: FakeService, client: DaemonClient) -> None:
    with_attempts(service, 1)
    put(service, 3, step(1), step(2), {"event": "eval", "step": 2, "loss": 9.5})
    reader = ReportReader(client, 3)
    assert list(read(reader, client).loss.shape.points) == [1, 2]
    put(service, 3, step(3))
    found = read(reader, client)
    assert list(found.loss.shape.points) == [1, 2, 3]
    assert found.eval_loss.last == 9.5
    assert found.speed.last == 15300.0
    assert (found.grad_norm.last, found.rate.last) == (STEP["grad_norm"], STEP["lr"])
    assert found.is_whole


def test_another_attempt_takes_the_place_of_what_it_repeats(
    service: FakeService, client: DaemonClient
) -> None:
    with_attempts(service, 1)
    put(service, 3, step(1), step(2), step(3))
    reader = ReportReader(client, 3)
    read(reader, client)
    with_attempts(service, 2)
    put(service, 3, step(3, loss=1.0), attempt=2)
    found = read(reader, client, 2)
    assert found.loss.shape.points == {1: 9.999, 2: 9.998, 3: 1.0}


def test_an_attempt_whose_log_was_removed_is_passed_over(
    service: FakeService, client: DaemonClient
) -> None:
    with_attempts(service, 2)
    put(service, 3, step(7), attempt=2)
    assert list(read(ReportReader(client, 3), client, 2).loss.shape.points) == [7]


def test_checkpoints_come_the_newest_first(service: FakeService, client: DaemonClient) -> None:
    with_attempts(service, 1)
    saved = {"event": "checkpoint", "bytes": 5, "seconds": 0.5, "verified": "at_save"}
    put(service, 3, {**saved, "step": 10, "path": "/a", "time": 1.0})
    put(service, 3, {**saved, "step": 20, "path": "/b", "verified": None, "not_verified": "off"})
    found = read(ReportReader(client, 3), client).checkpoints
    assert [(each.step, each.verified, each.not_verified) for each in found] == [
        (20, None, "off"),
        (10, "at_save", None),
    ]
    assert (found[1].size_bytes, found[1].seconds, found[1].time) == (5, 0.5, 1.0)


def test_what_a_job_reports_may_be_anything(service: FakeService, client: DaemonClient) -> None:
    with_attempts(service, 1)
    put(
        service,
        3,
        *({"event": "step", "step": value, "loss": 1.0} for value in ("x", -1, True, 2**70, None)),
        *(step(5, loss=value) for value in ("x", True, None, [1], 10**400)),
        {"event": "checkpoint", "step": 1, "path": 7},
        {"event": ["step"], "step": {}},
        "no record",
    )
    service.write(3, "progress.jsonl", b'{"event": "step", "step": 6, "loss": NaN}\nnot JSON\n')
    found = read(ReportReader(client, 3), client)
    assert (dict(found.loss.shape.points), found.checkpoints) == ({}, ())


def test_a_job_shows_what_the_one_before_it_did(service: FakeService, client: DaemonClient) -> None:
    over = (an_attempt(state="ended", ended=9.0),)
    service.views[1] = a_view(1, a_job(), state="failed", attempts=over, output_dir="/out")
    put(service, 1, step(1), step(2))
    going_on = a_job(resume_from="/out/step-1")
    service.views[3] = a_view(3, going_on, state="running", attempts=(an_attempt(),))
    put(service, 3, step(2, loss=1.0), step(3, loss=0.5))
    found = read(ReportReader(client, 3), client, 2)
    assert found.loss.shape.points == {1: 9.999, 2: 1.0, 3: 0.5}


def test_of_a_very_long_log_parts_are_read_and_its_end(
    service: FakeService, client: DaemonClient
) -> None:
    with_attempts(service, 1)
    put(service, 3, *(step(n, note="x" * 2000) for n in range(1, 4001)))  # 9 MB
    reader = ReportReader(client, 3, whole_bytes=1 << 20, parts=4)
    found = read(reader, client)
    steps = sorted(found.loss.shape.points)
    assert (found.is_whole, found.loss.first, found.loss.last_step) == (True, 9.999, 4000)
    gaps = [b - a for a, b in pairwise(steps) if b - a > 20]
    assert len(gaps) == 3
    assert max(gaps) < 1000


def curve_of(values: list[float], most: int = 100) -> LongCurve:
    curve = LongCurve(most)
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


def test_a_short_curve_is_all_there() -> None:
    seen = curve_of([3.0, 1.0, 2.0]).seen()
    assert seen.shape.points == {0: 3.0, 1: 1.0, 2: 2.0}
    assert seen.shape.means == (3.0, 1.0, 2.0)
    assert (seen.first, seen.last, seen.last_step) == (3.0, 2.0, 2)
    assert (seen.least, seen.least_step) == (1.0, 1)


def test_nothing_is_an_empty_curve() -> None:
    assert LongCurve().seen() == CurveSummary()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(2, 40))
def test_a_long_curve_keeps_its_ends_and_its_extremes(values: list[float], most: int) -> None:
    curve = curve_of(values, most)
    seen = curve.seen()
    points = list(seen.shape.points.values())
    assert len(seen.shape.means) <= most
    assert len(points) <= 4 * most
    assert (seen.first, seen.last, seen.least) == (values[0], values[-1], min(values))
    assert (points[0], points[-1]) == (values[0], values[-1])
    assert min(points) == min(values)


def test_steps_that_are_far_apart_become_few_parts_too() -> None:
    curve = LongCurve(10)
    for step in range(0, 100_000, 1000):
        curve.add(step, float(step))
    assert len(curve.seen().shape.means) <= 10
    assert curve.seen().last == 99_000.0


def test_a_step_is_not_taken_twice_but_after_a_cut() -> None:
    curve = curve_of([3.0, 2.0, 1.0])
    curve.add(1, 9.0)
    assert curve.seen().shape.points == {0: 3.0, 1: 2.0, 2: 1.0}
    curve.cut(1)
    curve.add(1, 9.0)
    assert curve.seen().shape.points == {0: 3.0, 1: 9.0}


def test_what_is_drawn_stays_the_same_object_until_the_curve_has_grown() -> None:
    curve = curve_of([1.0] * 3000)
    shape = curve.seen().shape
    curve.add(3000, 5.0)
    assert curve.seen().shape is shape
    assert curve.seen().last == 5.0
    for step in range(3001, 3100):
        curve.add(step, 5.0)
    assert curve.seen().shape is not shape
