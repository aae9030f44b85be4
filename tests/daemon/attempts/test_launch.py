"""The commands that go with an attempt."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.attempts.launch import THINNING, thinning_command

SOCKET = Path("/run/api.sock")


def test_older_checkpoints_are_thinned_where_the_job_asks_for_it() -> None:
    wanted = parsed(checkpoint={"every": 10, "thin_after": 2})
    command = thinning_command(wanted, "/out", 7, SOCKET)
    assert command == (sys.executable, "-E", "-P", str(THINNING), "/out", "2", str(SOCKET), "7")
    assert THINNING.is_file()
    named = parsed(checkpoint={"every": 10, "thin_after": 2}, resume_from="/old/step-1")
    assert thinning_command(named, "/out", 7, SOCKET)[-1] == "/old/step-1"


def test_nothing_is_thinned_by_default_or_where_no_daemon_can_be_asked() -> None:
    assert thinning_command(parsed(), "/out", 7, SOCKET) == ()
    assert thinning_command(parsed(checkpoint={"thin_after": 2}), "/out", 7, None) == ()
