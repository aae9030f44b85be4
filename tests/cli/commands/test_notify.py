"""`zerotools notify test`."""

from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService


def test_what_each_place_answered_is_shown(zerotools: Command, service: FakeService) -> None:
    done = zerotools("notify", "test")
    assert done.out.splitlines() == [
        "place  service  kind    delivered  answer",
        "lab    slack    failed  yes        status 200",
        "me     email    failed  no         status 75",
    ]
    assert done.status == 1
    done = zerotools("notify", "test", "--place", "lab", "--kind", "held", "--kind", "started")
    assert (done.status, len(done.out.splitlines())) == (0, 3)
    done = zerotools("notify", "test", "--place", "gone")
    assert (done.status, done.out) == (2, "")
    assert "place gone is not in the configuration" in done.err


def test_the_answers_as_json(zerotools: Command, service: FakeService) -> None:
    done = zerotools("notify", "test", "--place", "lab", "--json")
    assert json.loads(done.out)["sent"] == [
        {
            "place": "lab",
            "service": "slack",
            "notice": "failed",
            "delivered": True,
            "answer": "status 200",
        }
    ]
