"""The commands that go with an attempt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.attempts.launch import (
    THINNING,
    closing_command,
    newest_saved,
    thinning_command,
)

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


def test_the_trainer_is_told_what_earlier_attempts_saved_in_the_job_s_own_directory() -> None:
    own = Path("/runs/out")
    reported = ["/runs/out/step-00000040", "/runs/out/step-00000020", "/elsewhere/step-00000090"]
    assert newest_saved(reported, own) == 40
    assert newest_saved(["/runs/out/mine.pt"], own) == newest_saved([], own) == 0


@pytest.mark.parametrize("node", [0, 1])
def test_node_0_alone_exports_and_thins(node: int) -> None:
    meeting = {"address": "a:1", "nodes": 2, "node_rank": node}
    wanted = {"every": 10, "thin_after": 2, "export_on_finish": "bf16"}
    spec = parsed(checkpoint=wanted, rendezvous=meeting, output_dir="/out")
    assert bool(thinning_command(spec, "/out", 7, SOCKET)) == (node == 0)
    assert bool(closing_command(spec, "/out")) == (node == 0)
