"""`zerotools shares`."""

from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService


def test_who_goes_first_is_at_the_top(zerotools: Command, service: FakeService) -> None:
    lines = zerotools("shares").out.splitlines()
    assert lines[0].split() == [
        *("user", "weight", "share", "used", "GPU-hours", "in", "all", "GPUs", "waiting", "factor")
    ]
    assert lines[1].split() == ["anna", "1", "50.0%", "0.0%", "12.2", "480.0", "2", "3", "1.00"]
    assert lines[2].split()[-1] == "0.25"
    assert lines[3] == "7.0 d after its use, GPU time counts half as much"
    assert len(json.loads(zerotools("shares", "--json").out)["users"]) == 2
