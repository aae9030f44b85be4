from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import ADOPTABLE, FakeService


def test_a_process_is_watched(zerotools: Command, service: FakeService) -> None:
    done = zerotools("adopt", str(ADOPTABLE), "--name", "tiny", "--time-limit", "90m")
    assert done.out == (
        f"job 1 (tiny) watches process {ADOPTABLE} and 1 process that it started; GPUs that it "
        "uses now: 1\nthe process is stopped after 1 h 30 min if it still runs then\n"
    )
    answer = json.loads(zerotools("adopt", str(ADOPTABLE), "--json").out)
    assert answer["watched"]["below"] == [ADOPTABLE + 1]
    assert [job["id"] for job in answer["jobs"]] == [2]


def test_what_cannot_be_watched(zerotools: Command, service: FakeService) -> None:
    done = zerotools("adopt", "12")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: process 12 does not exist on this machine")
    for word in ("0", "-3", "x", "99999999"):
        assert zerotools("adopt", word).status == 2
    done = zerotools("adopt", str(ADOPTABLE), "--time-limit", "soon")
    assert (done.status, service.views) == (2, {})
    assert done.err.startswith("error: --time-limit soon: must be a number of seconds")
    done = zerotools("adopt", str(ADOPTABLE), "--checkpoint-dir", "")
    assert (done.status, service.views) == (2, {})
    assert done.err.startswith("error: --checkpoint-dir: is empty")
