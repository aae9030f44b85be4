from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from zerotools.jobs.doctor.daemon_and_service_manager import check_drain


def test_the_queue_says_that_it_is_drained(zerotools: Command, service: FakeService) -> None:
    service.add(state="queued")
    done = zerotools("drain", "--why", "new driver", "--json")
    assert json.loads(done.out)["daemon"]["drain"]["uid"] == 0
    first, *_ = zerotools("queue").out.splitlines()
    assert first.startswith("drained since ")
    assert first.endswith("by uid 0 (new driver): nothing starts until zerotools undrain")
    assert service.drained is not None
    (finding,) = check_drain(service.drained.to_json())
    assert (finding.level, finding.found) == (
        "warning",
        "is drained by uid 0 (new driver): no job starts",
    )
    assert zerotools("undrain").out == "the queue is not drained any more: jobs start again\n"
    assert "drained" not in zerotools("queue").out
    assert list(check_drain(None)) == []
