from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import an_attempt
from zerotools.cli.commands.logs import LONGEST_LINE, LineSink, LogReader
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.jobs.client.daemon_client import DaemonClient

COLOURED = b"\x1b[31mred\x1b[0m\r\n 10%\r 20%\nhalf"


@pytest.fixture
def running(service: FakeService) -> FakeService:
    service.add(state="running", reason=None, attempts=(an_attempt(),))
    service.write(1, "rank-0.log", COLOURED)
    service.write(1, "rank-1.log", b"other\n")
    return service


def test_a_pipe_gets_the_bytes_unchanged(running: FakeService, client: DaemonClient) -> None:
    command = [sys.executable, "-m", "zerotools", "logs", "1", "--socket", str(client.socket)]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == COLOURED


@pytest.mark.parametrize("lines", [0, 1, 3, 40_000, 200_000])
def test_the_tail_is_the_last_lines(running: FakeService, zerotools: Command, lines: int) -> None:
    text = "".join(f"line {n}\n" for n in range(100_000))
    running.write(1, "rank-1.log", text.encode())
    done = zerotools("logs", "--rank", "1", "--tail", str(lines))
    whole = ["other", *text.splitlines()]
    assert done.out.splitlines() == (whole[-lines:] if lines else [])


def test_all_ranks_are_told_apart(zerotools: Command, running: FakeService) -> None:
    done = zerotools("logs", "1", "--rank", "all")
    assert done.out.splitlines() == [
        "[rank 0] \\x1b[31mred\\x1b[0m",
        "[rank 0]  10%",
        "[rank 0]  20%",
        "[rank 1] other",
        "[rank 0] half",
    ]


def test_json_is_one_object_a_line(zerotools: Command, running: FakeService) -> None:
    lines = zerotools("logs", "1", "--rank", "1", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"schema": "zerotools.logs/1", "attempt": 1, "rank": 1, "line": "other"}
    ]


def test_what_is_not_there(zerotools: Command, service: FakeService) -> None:
    service.add()
    assert zerotools("logs", "1") == (
        0,
        "",
        (
            "job 1 (tiny) has not started, so it has no log yet: needs 1 GPU, and GPU 0 is "
            "leased to job 1\n"
        ),
    )
    service.change(1, state="cancelled", reason="cancelled by anna")
    said = "job 1 (tiny) never started, so it has no log: cancelled by anna\n"
    assert zerotools("logs", "1") == (0, "", said)
    assert zerotools("logs", "1", "--rank", "2").err == (
        "error: --rank 2: job 1 (tiny) has ranks 0 to 1\nhint: give one, or all\n"
    )
    service.change(1, attempts=(an_attempt(),))
    done = zerotools("logs", "1", "--attempt", "4")
    assert (done.status, done.err) == (2, "error: job 1 has no attempt 4; it has 1 so far\n")


def test_the_logs_of_a_job_that_cannot_be_read_can(
    zerotools: Command, running: FakeService
) -> None:
    running.change(1, world_size=0)
    assert zerotools("logs", "1", "--rank", "1").out == "other\n"
    assert zerotools("logs", "1", "--rank", "all").out.startswith("[rank 0] ")


def test_follow_goes_on_over_attempts(
    service: FakeService, client: DaemonClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pause of the follower is a step of the job."""
    service.add(state="queued")
    first = an_attempt(1, state="ended", ended=1.0)

    def script() -> Iterator[None]:
        service.change(1, state="running", reason=None, attempts=(an_attempt(1),))
        service.write(1, "rank-0.log", b"one\ntw")
        yield
        service.write(1, "rank-0.log", b"o\n")
        service.change(1, state="launching", attempts=(first, an_attempt(2)))
        service.write(1, "rank-0.log", b"three\n", attempt=2)
        yield
        yield
        second = an_attempt(2, state="ended", ended=2.0)
        service.change(1, state="succeeded", attempts=(first, second))
        yield

    steps = script()
    out = io.StringIO()
    reader = LogReader(client, 1, [0], LineSink(out, prefixed=False))
    reader.follow(None, Poller(pause=lambda _: next(steps)))
    assert out.getvalue() == "one\ntwo\nthree\n"
    assert capsys.readouterr().err == "attempt 2 of job 1\njob 1 (tiny) succeeded\n"


def test_follow_of_one_attempt_ends_with_it(
    service: FakeService, client: DaemonClient, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = an_attempt(1, state="ended", ended=1.0)
    service.add(state="running", attempts=(ended, an_attempt(2)))
    service.write(1, "rank-0.log", b"one\n")
    out = io.StringIO()
    LogReader(client, 1, [0], LineSink(out, prefixed=False)).follow(1, Poller())
    assert out.getvalue() == "one\n"
    assert capsys.readouterr().err == ""


def test_follow_of_a_job_that_fails_is_status_6(zerotools: Command, running: FakeService) -> None:
    running.change(1, state="failed", reason="no data", attempts=(an_attempt(ended=1.0),))
    done = zerotools("logs", "-f", "1", "--rank", "1")
    assert (done.status, done.err) == (6, "error: job 1 (tiny) failed: no data\n")


def test_a_line_without_end_is_cut() -> None:
    out = io.StringIO()
    sink = LineSink(out, prefixed=False)
    sink.feed(1, 0, b"x" * (LONGEST_LINE + 1))
    assert len(out.getvalue()) == LONGEST_LINE + 2
