"""The commands that go with an attempt."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.attempts.end.test_lost_steps import a_row
from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.attempts.launch import (
    MIRRORING,
    THINNING,
    closing_command,
    known_as,
    mirroring_commands,
    newest_saved,
    on_disk,
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


def test_what_lies_in_a_store_is_fetched_before_and_copied_beside_the_ranks() -> None:
    spec = parsed(
        checkpoint={"upload_to": "s3://b/run", "upload_keep_last": 3}, resume_from="s3://b/old"
    )
    fetching, uploading = mirroring_commands(spec, "/out", "host:7")
    assert fetching[:5] == (sys.executable, "-E", "-P", str(MIRRORING), "fetch")
    assert uploading[:5] == (*fetching[:4], "upload")
    assert MIRRORING.is_file()
    assert (
        json.loads(fetching[5])
        == json.loads(uploading[5])
        == {
            "output_dir": "/out",
            "job": "host:7",
            "upload_to": "s3://b/run",
            "keep_last": 3,
            "keep_every": None,
            "resume_from": "s3://b/old",
        }
    )
    assert mirroring_commands(parsed(resume_from="/old"), "/out", "host:7") == ((), ())
    assert mirroring_commands(parsed(resume_from="s3://b/old"), "/out", "host:7")[1] == ()


def test_ranks_are_given_a_start_on_the_disk() -> None:
    spec = parsed(resume_from="s3://b/old", output_dir="/out")
    assert on_disk(spec).resume_from == "/out/.resumed-from"
    own = parsed(resume_from="s3://b/run/", checkpoint={"upload_to": "s3://b/run"})
    assert on_disk(own).resume_from is None
    assert on_disk(parsed(resume_from="/old")).resume_from == "/old"


@pytest.mark.parametrize("node", [0, 1])
def test_node_0_alone_exports_and_thins(node: int) -> None:
    meeting = {"address": "a:1", "nodes": 2, "node_rank": node}
    wanted = {"every": 10, "thin_after": 2, "export_on_finish": "bf16"}
    spec = parsed(checkpoint=wanted, rendezvous=meeting, output_dir="/out")
    assert bool(thinning_command(spec, "/out", 7, SOCKET)) == (node == 0)
    assert bool(closing_command(spec, "/out")) == (node == 0)
    spec = parsed(checkpoint={"upload_to": "s3://b/run"}, rendezvous=meeting, output_dir="/out")
    assert [bool(each) for each in mirroring_commands(spec, "/out", "7")] == [node == 0] * 2


def test_a_job_is_known_again_whatever_machine_and_number_slurm_gives_it() -> None:
    job = a_row(parsed())
    assert known_as(replace(job, id=8)) == known_as(job)
    others = [replace(job, output_dir="/other"), replace(job, created=2.0), replace(job, uid=7)]
    assert known_as(job) not in map(known_as, others)
