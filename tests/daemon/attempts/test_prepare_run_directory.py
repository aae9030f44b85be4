"""The commands that go with an attempt."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.attempts.test_make_end_event import a_row
from tests.daemon.made_attempts import an_attempt_row, own_token
from tests.daemon.users.other_users import AS_ROOT, UID, open_directory, user_of
from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.attempts import prepare_run_directory, recover_lost_attempts
from zerotoolsd.attempts.make_attempt_plan import (
    MIRRORING,
    THINNING,
    closing_command,
    known_as,
    mirroring_commands,
    on_disk,
    rank_environment,
    thinning_command,
)
from zerotoolsd.attempts.prepare_run_directory import newest_saved
from zerotoolsd.queue.rows import RUNNING, AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.users.open_as_user import file_rights

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


def test_ranks_on_gpus_see_those_of_the_attempt() -> None:
    attempt = an_attempt_row(gpu_uuids=("GPU-b", "GPU-a"))
    found = rank_environment(parsed(device="cuda", gpus=2, ranks=None), attempt)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "GLOO_SOCKET_IFNAME" not in found
    on_cpus = rank_environment(parsed(), an_attempt_row())
    assert on_cpus["CUDA_VISIBLE_DEVICES"] == ""
    assert on_cpus["GLOO_SOCKET_IFNAME"] == "lo"


def test_a_job_is_known_again_whatever_machine_and_number_slurm_gives_it() -> None:
    job = a_row(parsed())
    assert known_as(replace(job, id=8)) == known_as(job)
    others = [replace(job, output_dir="/other"), replace(job, created=2.0), replace(job, uid=7)]
    assert known_as(job) not in map(known_as, others)


pytestmark = AS_ROOT
ACCOUNT = user_of().account


@pytest.fixture
def state() -> Iterator[Path]:
    with open_directory() as place:
        yield place


def attempt(run_dir: Path) -> AttemptRow:
    return AttemptRow(
        job_id=7,
        number=1,
        token=own_token(),
        state=RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=("GPU-1",),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
        host=os.uname().nodename,
    )


def test_the_user_reaches_what_is_theirs_and_names_nothing_beside_it(state: Path) -> None:
    own = state / "jobs" / "7"
    for _ in range(2):  # it may be repeated
        prepare_run_directory.make_user_directories(own, ["attempt-1", "output"], ACCOUNT)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (own.parent, own)}
    assert modes == {own.parent: 0o711, own: 0o755}
    for name in ("attempt-1", "output"):
        found = (own / name).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (UID, 0o700)
    with file_rights(UID, UID):
        (own / "attempt-1" / "mine").touch()
        for change in (
            lambda: (own / "attempt-2").mkdir(),
            lambda: (own / "attempt-1").rename(own / "gone"),
            lambda: (own / "output").rmdir(),
            lambda: list(own.parent.iterdir()),
        ):
            with pytest.raises(PermissionError):
                change()


def test_only_what_the_daemon_noted_is_an_attempt(state: Path) -> None:
    """A user who forges attempts makes the queue believe nothing when it is made anew."""
    own = state / "jobs" / "7"
    prepare_run_directory.make_user_directories(own, ["attempt-1", "attempt-2"], ACCOUNT)
    run_dir = own / "attempt-1"
    prepare_run_directory.write_attempt_note(run_dir, attempt(run_dir), {"device": "cpu"})
    for number in (1, 2):
        forged = {"token": "00" * 16, "job_id": 7, "gpu_uuids": ["GPU-1", "GPU-2"]}
        write_json(own / f"attempt-{number}" / "attempt.json", forged)
        os.chown(own / f"attempt-{number}" / "attempt.json", UID, UID)
    noted = prepare_run_directory.read_attempt_note(run_dir)
    assert noted is not None
    assert (noted["token"], noted["gpu_uuids"]) == (own_token(), ["GPU-1"])
    with pytest.raises(ValueError, match=r"begun-2.json is missing"):
        prepare_run_directory.read_attempt_note(own / "attempt-2")
    assert prepare_run_directory.read_attempt_note(own) is None
    store = Store(state, rebuild=True)
    try:
        assert recover_lost_attempts.add_missing_from_runs(state, store, 1.0) == [7]
        assert store.job(7).uid == UID
        assert [(row.token, row.gpu_uuids) for row in store.attempts(7)] == [
            (own_token(), ("GPU-1",))
        ]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("made", "is_own", "mode"),
    [(False, True, 0o711), (False, False, 0o711), (True, True, 0o711), (True, False, 0o700)],
)
def test_a_cache_that_a_job_of_root_made_is_no_bar(
    state: Path, made: bool, is_own: bool, mode: int
) -> None:
    shared = state / "data-cache"
    if made:
        shared.mkdir(mode=0o700)
    for _ in range(2):
        prepare_run_directory.make_user_cache(shared / f"uid-{UID}", ACCOUNT, is_own=is_own)
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert (shared / f"uid-{UID}").stat().st_uid == UID
