from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.patience import patient
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from zerotools.cli.top.reading import job_details
from zerotools.cli.top.reading.disk_reader import DiskReader
from zerotools.cli.top.reading.job_details import (
    JobDetailsReader,
    LogFollower,
    log_lines,
    newest_checkpoint,
)
from zerotools.cli.top.reading.job_list import completed
from zerotools.jobs.client.daemon_client import DaemonClient


@pytest.fixture
def places() -> Iterator[DiskReader]:
    looker = DiskReader(deadline_seconds=patient(5))
    yield looker
    looker.close()


def saved(step: int, path: Path, **changes: Any) -> bytes:
    record = {"event": "checkpoint", "step": step, "path": str(path), "verified": "at_save"}
    return json.dumps({**record, "time": float(step), **changes}).encode() + b"\n"


def test_checkpoints_that_are_gone_are_not_shown(
    service: FakeService, client: DaemonClient, places: DiskReader, tmp_path: Path
) -> None:
    view = a_view(3, a_job(), state="running", attempts=(an_attempt(),))
    service.views[3] = view
    (tmp_path / "step-2").mkdir()
    for step in (1, 2):
        service.write(3, "progress.jsonl", saved(step, tmp_path / f"step-{step}"))
    service.write(3, "rank-0.log", b"a line\n")
    reader = JobDetailsReader(client, places, lambda: 0.0)
    found = reader.read(completed([view.to_json()])[0])
    assert [(each.reported.step, each.time) for each in found.checkpoints] == [(2, 2.0)]
    assert found.log == ("a line",)
    assert found.trouble == ""


def test_where_nobody_can_look_what_was_reported_is_shown(
    service: FakeService, client: DaemonClient
) -> None:
    service.views[3] = a_view(3, a_job(), state="running", attempts=(an_attempt(),))
    service.write(3, "progress.jsonl", saved(1, Path("/elsewhere/step-1")))
    reader = JobDetailsReader(client, None, lambda: 0.0)
    found = reader.read(completed([client.job(3)])[0]).checkpoints
    assert [(each.reported.path, each.seen) for each in found] == [("/elsewhere/step-1", None)]


def test_the_newest_is_known_without_a_report(
    client: DaemonClient, places: DiskReader, tmp_path: Path
) -> None:
    latest = {"step": 40, "path": str(tmp_path), "verified": None, "not_verified": "off"}
    job = completed([{"id": 9, "latest_checkpoint": latest}])[0]
    os.utime(tmp_path, (7.0, 7.0))
    (found,) = JobDetailsReader(client, places, lambda: 0.0).read(job).checkpoints
    assert (found.reported.not_verified, found.time) == ("off", 7.0)


@pytest.mark.parametrize("latest", [None, {}, {"step": "x", "path": "/a"}, {"step": 1, "path": 2}])
def test_no_checkpoint(latest: object) -> None:
    assert newest_checkpoint(completed([{"id": 9, "latest_checkpoint": latest}])[0]) is None


def test_of_somebody_elses_job_nothing_is_asked(client: DaemonClient) -> None:
    job = completed([{"id": 9, "masked": True}])[0]
    found = JobDetailsReader(client, None, lambda: 0.0).read(job)
    assert found.trouble == "only the job's owner and administrators see the rest"


def test_what_the_daemon_refuses_is_said(client: DaemonClient) -> None:
    job = completed([{"id": 9, "attempt": {"number": 1}, "attempts": [{"number": 1}]}])[0]
    assert JobDetailsReader(client, None, lambda: 0.0).read(job).trouble == "job 9 does not exist"


def test_lines_of_a_log() -> None:
    assert log_lines(b"a\tb\n\n 10%\r 20%\r\n\xff") == ["a       b", " 10%", " 20%", "\ufffd"]


def follower(service: FakeService, client: DaemonClient) -> LogFollower:
    service.views[3] = a_view(3, a_job(name="tiny"), state="running", attempts=(an_attempt(),))
    return LogFollower(client, client.job(3), 0)


def test_new_lines_are_added_and_a_line_grows(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    service.write(3, "rank-0.log", b"one\ntwo\nthr")
    assert log.read().lines == ("one", "two", "thr")
    service.write(3, "rank-0.log", b"ee\n\n12%\r34%\r\nend\n")
    assert log.read().lines == ("one", "two", "three", "12%", "34%", "end")
    assert log.read().title == "log of job 3 (tiny), rank 0"


def test_characters_may_be_cut_anywhere(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    text = "größe\n".encode()
    service.write(3, "rank-0.log", text[:3])
    log.read()
    service.write(3, "rank-0.log", text[3:] + b"\xff\n")
    assert log.read().lines == ("größe", "\ufffd")


def test_the_next_attempt_follows(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    service.write(3, "rank-0.log", b"one\n")
    log.read()
    service.change(3, attempts=(an_attempt(1, ended=9.0), an_attempt(2)))
    service.write(3, "rank-0.log", b"again\n", attempt=2)
    assert log.read().lines == ("one", "--- attempt 2 ---", "again")
    assert log.read().title.endswith("attempt 2")


def test_the_last_lines_of_a_long_log(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    service.write(3, "rank-0.log", b"".join(b"line %d\n" % n for n in range(100_000)))
    assert log.read().lines[-1] == "line 99999"
    service.write(3, "rank-0.log", b"".join(b"more %d\n" % n for n in range(200_000)))
    found = log.read()
    assert len(found.lines) == job_details.MOST_LINES
    assert found.lines[-1] == "more 199999"
    assert found.dropped > 0


def test_a_line_without_end_is_bounded(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    service.write(3, "rank-0.log", b"x" * 3_000_000)
    assert max(map(len, log.read().lines)) <= job_details.LONGEST_LINE
