from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, an_attempt
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient, LogBytes
from zerotoolsd.http.api.job_outputs import LARGEST_PART, parse_records


@pytest.fixture
def running(service: FakeService) -> FakeService:
    service.add(state="running", attempts=(an_attempt(),))
    return service


def test_a_job_without_an_attempt_has_an_empty_log(
    service: FakeService, client: DaemonClient
) -> None:
    service.add()
    assert client.logs(1) == LogBytes(b"", 0, 0, over=False)
    service.change(1, state="cancelled")
    assert client.logs(1) == LogBytes(b"", 0, 0, over=True)


def test_logs_are_followed_by_offset(running: FakeService, client: DaemonClient) -> None:
    assert client.logs(1) == LogBytes(b"", 0, 1, over=False), "the file is not there yet"
    running.write(1, "rank-0.log", b"one\ntwo\n")
    assert client.logs(1, limit=4) == LogBytes(b"one\n", 4, 1, over=False)
    assert client.logs(1, offset=4) == LogBytes(b"two\n", 8, 1, over=False)
    running.change(1, attempts=(an_attempt(ended=1.0),))
    assert client.logs(1, offset=4, limit=2) == LogBytes(b"tw", 6, 1, over=False)
    assert client.logs(1, offset=8) == LogBytes(b"", 8, 1, over=True)


def test_a_negative_offset_counts_from_the_end(running: FakeService, client: DaemonClient) -> None:
    running.write(1, "rank-1.log", b"abcdef")
    assert client.logs(1, rank=1, offset=-2).data == b"ef"
    assert client.logs(1, rank=1, offset=-99).data == b"abcdef"
    assert client.logs(1, rank=1, offset=99) == LogBytes(b"", 6, 1, over=False)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"rank": 2}, "rank=2: job 1 has ranks 0 to 1"),
        ({"rank": -1}, "must be a whole number"),
        ({"attempt": 7}, "job 1 has no attempt 7"),
        ({"limit": LARGEST_PART + 1}, "must be a whole number from 0 to 1048576"),
        ({"offset": 10**20}, "must be a whole number"),
    ],
)
def test_bounds(
    query: dict[str, int], said: str, running: FakeService, client: DaemonClient
) -> None:
    with pytest.raises(BadRequest, match=said):
        client.logs(1, **query)


def test_only_regular_files_are_read(running: FakeService, client: DaemonClient) -> None:
    running.write(1, "secret", b"x")
    directory = running.run_dir(1, 1)
    os.mkfifo(directory / "rank-0.log")
    (directory / "rank-1.log").symlink_to("secret")
    with pytest.raises(BadRequest, match=r"rank-0.log is not a regular file"):
        client.logs(1)
    with pytest.raises(BadRequest, match=r"rank-1.log cannot be read"):
        client.logs(1, rank=1)


@pytest.mark.parametrize("name", ["rank-0.log", "progress.jsonl"])
@pytest.mark.parametrize("trick", ["link", "pipe", "directory", "socket", "link as its directory"])
def test_what_a_job_puts_in_the_place_of_its_files_is_not_read(
    running: FakeService, client: DaemonClient, tmp_path: Path, name: str, trick: str
) -> None:
    secret = tmp_path / "others"
    secret.mkdir()
    (secret / name).write_text('{"secret": 1}\n')
    directory = running.run_dir(1, 1)
    directory.parent.mkdir(parents=True)
    if trick == "link as its directory":
        directory.symlink_to(secret)
    else:
        directory.mkdir()
        _put(trick, directory / name, secret / name)
    with pytest.raises(BadRequest, match=r"cannot be read|is not a regular file"):
        client.logs(1) if name == "rank-0.log" else client.progress(1)
    assert client.health()["pid"] == 1


def _put(trick: str, place: Path, secret: Path) -> None:
    if trick == "link":
        place.symlink_to(secret)
    elif trick == "pipe":
        os.mkfifo(place)
    elif trick == "directory":
        place.mkdir()
    else:
        os.mknod(place, 0o600 | stat.S_IFSOCK)


def test_a_sparse_file_of_a_terabyte_is_read_in_parts(
    running: FakeService, client: DaemonClient
) -> None:
    running.write(1, "rank-0.log", b"begin")
    running.write(1, "progress.jsonl", b'{"event": "step"}\n')
    directory = running.run_dir(1, 1)
    for name in ("rank-0.log", "progress.jsonl"):
        os.truncate(directory / name, 1 << 40)
    assert client.logs(1, limit=5).data == b"begin"
    end = client.logs(1, offset=-3)
    assert (end.data, end.next_offset) == (b"\0\0\0", 1 << 40)
    found = client.progress(1)
    assert (found["records"], found["next"]) == ([{"event": "step"}], 18)
    assert client.progress(1, since=18)["next"] == 18 + LARGEST_PART


def test_progress_is_followed_by_offset(running: FakeService, client: DaemonClient) -> None:
    line = json.dumps(STEP).encode() + b"\n"
    running.write(1, "progress.jsonl", line + b"not json\n" + line[:10])
    first = client.progress(1)
    assert (first["records"], first["over"]) == ([STEP], False)
    running.write(1, "progress.jsonl", line[10:])
    running.change(1, attempts=(an_attempt(ended=1.0),))
    second = client.progress(1, since=first["next"])
    assert (second["records"], second["attempt"], second["over"]) == ([STEP], 1, True)
    assert client.progress(1, since=second["next"])["records"] == []


def test_progress_of_a_job_without_an_attempt(service: FakeService, client: DaemonClient) -> None:
    service.add()
    assert client.progress(1) == {"records": [], "next": 0, "attempt": 0, "over": False}


def test_an_endless_line_holds_nobody_up() -> None:
    assert parse_records(b"x" * LARGEST_PART) == ([], LARGEST_PART)
    assert parse_records(b'{"a":1}\n{"b"') == ([{"a": 1}], 8)


def test_logs_that_were_removed_are_not_an_empty_log(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="succeeded", attempts=(an_attempt(state="ended", ended=1.0),))
    said = "the logs and the progress of attempt 1 of job 1 were removed"
    with pytest.raises(BadRequest, match=said):
        client.logs(1)
    with pytest.raises(BadRequest, match=said):
        client.progress(1)


def test_an_attempt_that_never_started_has_no_logs_that_were_removed(
    service: FakeService, client: DaemonClient
) -> None:
    attempt = an_attempt(state="ended", started=None, ended=1.0, cause="no such directory: /gone")
    service.add(state="failed", attempts=(attempt,))
    said = "attempt 1 of job 1 never started, so it has no logs: no such directory: /gone"
    for ask in (client.logs, client.progress):
        with pytest.raises(BadRequest, match=said):
            ask(1)
