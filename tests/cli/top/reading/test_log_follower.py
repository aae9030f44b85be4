from __future__ import annotations

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from zerotools.cli.top.reading import log_follower
from zerotools.cli.top.reading.log_follower import LogFollower
from zerotools.jobs.client.daemon_client import DaemonClient


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
    assert len(found.lines) == log_follower.MOST_LINES
    assert found.lines[-1] == "more 199999"
    assert found.dropped > 0


def test_a_line_without_end_is_bounded(service: FakeService, client: DaemonClient) -> None:
    log = follower(service, client)
    service.write(3, "rank-0.log", b"x" * 3_000_000)
    assert max(map(len, log.read().lines)) <= log_follower.LONGEST_LINE
