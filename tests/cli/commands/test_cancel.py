from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import an_attempt

TRAINS: dict[str, Any] = {
    "doing": None,
    "since": None,
    "last_progress": 1.0,
    "quiet": False,
    "last_line": None,
}
SCRIPT = {"engine": "script", "script": {"command": ["train.py"], "launcher": "plain"}}


def test_one_that_waits_and_one_that_runs(zerotools: Command, service: FakeService) -> None:
    service.add()
    service.add(state="running", attempts=(an_attempt(),), phase=TRAINS)
    done = zerotools("cancel", "1", "2", "2")
    assert done == (
        0,
        "job 1 (tiny) is cancelled; it was not running\n"
        "job 2 (tiny) saves at its next step, then stops "
        "(see its progress: zerotools show 2)\n",
        "",
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"phase": TRAINS}, "saves at its next step, then stops ("),
        (
            {"phase": {**TRAINS, "doing": "loading the weights"}},
            "stops as soon as loading the weights ends, before its first step, so it saves "
            "nothing; processes that still run",
        ),
        (
            {"phase": {**TRAINS, "quiet": True}},
            "gets a request to save and stop, although it shows no progress; processes",
        ),
        ({"phase": None}, "stops before it begins; there is nothing to save ("),
        (
            {"phase": TRAINS, "attempts": (an_attempt(steps_done=0),)},
            "gets a request to stop, and saves if it has made a step; processes",
        ),
        (
            {"phase": TRAINS, "stage": None, "spec": SCRIPT},
            (
                "gets SIGTERM and may save; processes that "
                "still run after stop.grace_seconds are killed ("
            ),
        ),
        (
            {"phase": TRAINS, "stage": None, "spec": {}},
            "gets a request to stop; processes that still run after",
        ),
    ],
)
def test_what_is_said_is_what_happens(
    zerotools: Command, service: FakeService, job: dict[str, Any], said: str
) -> None:
    service.add()
    service.change(1, **{"state": "running", "attempts": (an_attempt(),), **job})
    assert said in zerotools("cancel", "1").out


def test_a_refusal_does_not_keep_the_others_alive(zerotools: Command, service: FakeService) -> None:
    service.add(state="failed")
    service.add()
    done = zerotools("cancel", "9", "1", "2")
    assert done.status == 5
    assert done.out == "job 2 (tiny) is cancelled; it was not running\n"
    assert done.err == ("error: job 9 does not exist\nerror: job 1 has failed\n")


def test_wait_returns_at_once_where_it_is_over(zerotools: Command, service: FakeService) -> None:
    service.add()
    done = zerotools("cancel", "1", "--wait", "--json")
    assert [job["state"] for job in json.loads(done.out)["jobs"]] == ["cancelled"]
