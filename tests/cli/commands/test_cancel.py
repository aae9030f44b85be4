from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.api.fakes import FakeService, an_attempt


def test_one_that_waits_and_one_that_runs(zerotools: Command, service: FakeService) -> None:
    service.add()
    service.add(state="running", attempts=(an_attempt(),))
    done = zerotools("cancel", "1", "2", "2")
    assert done == (
        0,
        "job 1 (tiny) is cancelled; it was not running\n"
        "job 2 (tiny) saves at its next step, then stops "
        "(see how far it is: zerotools show 2)\n",
        "",
    )


def test_a_refusal_does_not_keep_the_others_alive(zerotools: Command, service: FakeService) -> None:
    service.add(state="failed")
    service.add()
    done = zerotools("cancel", "9", "1", "2")
    assert done.status == 5
    assert done.out == "job 2 (tiny) is cancelled; it was not running\n"
    assert done.err == "error: there is no job 9\nerror: job 1 is over: it is failed\n"


def test_wait_returns_at_once_where_it_is_over(zerotools: Command, service: FakeService) -> None:
    service.add()
    done = zerotools("cancel", "1", "--wait", "--json")
    assert [job["state"] for job in json.loads(done.out)] == ["cancelled"]
