"""`zerotools wait`, told by events."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.cli.job_actions.wait_for_jobs import EndingWatch, Poller
from zerotools.cli.main import build, run
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotoolsd.interface.api_types import Event


def end(service: FakeService, job_id: int, state: str) -> None:
    service.change(job_id, state=state, reason=None)
    seq = len(service.feed) + 1
    service.feed.append(
        Event(
            seq=seq,
            time=1.0,
            job_id=job_id,
            attempt=None,
            kind="end",
            from_state="running",
            to_state=state,
            why=None,
        )
    )


def test_the_exit_status_says_how_all_have_ended(zerotools: Command, service: FakeService) -> None:
    for state in ("succeeded", "failed", "running", "on_hold"):
        service.add(state=state, reason=None, name=state)
    assert zerotools("wait", "1") == (0, "job 1 (succeeded) succeeded\n", "")
    done = zerotools("wait", "1", "failed")
    assert (done.status, done.err) == (6, "error: not succeeded: job 2 (failed)\n")
    assert zerotools("wait", "1", "3", "--any").status == 0
    done = zerotools("wait", "4", "--json")
    assert (done.status, [job["id"] for job in json.loads(done.out)["jobs"]]) == (6, [4])
    assert "4 (held)" in done.err
    done = zerotools("wait", "1", "3", "--timeout", "1")
    assert done == (
        124,
        "job 1 (succeeded) succeeded\n",
        "error: --timeout 1 has passed before the end of job 3\n",
    )
    assert zerotools("wait", "3", "--timeout", "soon").status == 2


@pytest.mark.parametrize("old", [False, True])
def test_an_end_is_told_and_jobs_are_not_asked_over_and_over(
    client: DaemonClient, service: FakeService, old: bool
) -> None:
    for _ in range(3):
        service.add(state="running")
    asked: list[int] = []

    class Watched(DaemonClient):
        def job(self, job_id: int) -> dict[str, object]:
            asked.append(job_id)
            return super().job(job_id)

        def health(self) -> dict[str, object]:
            return {} if old else super().health()

    watch = EndingWatch(Watched(client.socket), [1, 2, 3], Poller(pause=lambda _: None))
    ends = watch.ends(None)
    end(service, 2, "failed")
    assert next(ends)["id"] == 2
    if not old:
        end(service, 1, "succeeded")
        end(service, 3, "succeeded")
        assert [job["id"] for job in ends] == [3, 1]
        assert asked == [1, 2, 3, 1], "once each, and the first again as it was told of its end"
        assert watch.open == set()


class Silent(FakeService):
    """A daemon that answers no question for events."""

    async def events(self, since: int, wait: float) -> list[Event]:
        await asyncio.Event().wait()
        return []


def test_a_daemon_that_is_away_does_not_make_the_wait_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Silent(tmp_path / "state")
    service.add(state="running")
    path = tmp_path / "run" / "api.sock"
    with serving(service, path):
        began = time.monotonic()
        assert run(build(), ["wait", "--socket", str(path), "1", "--timeout", "1"]) == 124
        assert time.monotonic() - began < 10
    said = capsys.readouterr().err
    assert said == "error: --timeout 1 has passed before the end of job 1\n"
