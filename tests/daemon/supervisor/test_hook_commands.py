"""What runs beside ranks, before them and after them."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from tests.daemon.made_attempts import (
    finish,
    make_attempt,
    noted_at_step,
    progress_of,
    started,
    supervise,
    wait_for_file,
)
from tests.daemon.waiting import wait_for
from zerotoolsd.queue.lifecycle import YIELD
from zerotoolsd.queue.tables.preemption_table import PAUSE, PURPOSES
from zerotoolsd.supervisor.attempt_plan import GOES_ON
from zerotoolsd.supervisor.durable_files import read_json, write_json


def test_what_thins_runs_beside_the_ranks_once_for_each_checkpoint_and_at_the_end(
    tmp_path: Path,
) -> None:
    thinning = ("/bin/sh", "-c", f"echo once >> {tmp_path}/ran; echo said")
    run = make_attempt(tmp_path / "run", "steps=1 save=1 release exit=0", thinning=thinning)
    process = supervise(run)
    wait_for_file(tmp_path / "ran")
    (run / "release").touch()
    assert finish(run, process)["outcome"] == "finished"
    assert (tmp_path / "ran").read_text() == "once\n" * 2
    assert (run / "thinning.log").read_text() == "said\n" * 2


def test_what_uploads_runs_from_the_start_and_once_more_at_the_end(tmp_path: Path) -> None:
    uploading = ("/bin/sh", "-c", f"echo once >> {tmp_path}/ran; echo refused >&2; exit 1")
    run = make_attempt(tmp_path / "run", "steps=1 release exit=0", uploading=uploading)
    process = supervise(run)
    wait_for_file(tmp_path / "ran")
    (run / "release").touch()
    record = finish(run, process)
    assert (record["outcome"], record["uploading"]["why"]) == ("finished", "refused")
    assert (tmp_path / "ran").read_text() == "once\n" * 2


@pytest.mark.parametrize(("reason", "goes_on"), [("cancel", False), ("preempt", True)])
def test_what_was_saved_at_a_stop_is_uploaded_within_its_grace(
    reason: str, goes_on: bool, tmp_path: Path
) -> None:
    """Not where the daemon starts the job again by itself, which goes on with that then."""
    uploading = ("/bin/sh", "-c", "test ! -e saved || exec sleep 600")
    run = make_attempt(tmp_path / "run", "steps=1 save=1 stop", uploading=uploading)
    process = supervise(run)
    started(run)
    wait_for(lambda: noted_at_step(1, run), "a step")
    (run / "saved").touch()
    write_json(run / "request.json", {"reason": reason, "grace_seconds": 1.0})
    record = finish(run, process)
    assert record["outcome"] == "stopped"
    assert ("uploading" not in record) == goes_on
    if not goes_on:
        assert record["uploading"]["why"] == "it was stopped"


def test_a_stop_of_a_finished_run_leaves_its_upload_the_grace(tmp_path: Path) -> None:
    wait = "while test ! -e asked; do sleep 0.05; done; test -e late || exec sleep 600"
    ends = ("/bin/sh", "-c", f"touch began; test -e finished || exit 0; {wait}")
    for name, grace, why in (("in-time", 60.0, None), ("late", 0.2, "it was stopped")):
        run = make_attempt(tmp_path / name, "steps=1 release exit=0", uploading=ends)
        if why is None:
            (run / "late").touch()
        process = supervise(run)
        wait_for_file(run / "began")
        (run / "finished").touch()
        (run / "release").touch()
        wait_for(lambda run=run: read_json(run / "ended.json"), "the ranks to end")  # type: ignore[misc]
        write_json(run / "request.json", {"reason": "cancel", "grace_seconds": grace})
        (run / "asked").touch()
        record = finish(run, process)
        assert (record["outcome"], record["uploading"]["why"]) == ("finished", why)


@pytest.mark.parametrize(
    ("status", "outcome"), [(0, "finished"), (1, "not_started"), (75, "not_ready")]
)
def test_ranks_begin_when_what_they_go_on_from_was_fetched(
    status: int, outcome: str, tmp_path: Path
) -> None:
    fetching = ("/bin/sh", "-c", f"echo no such bucket; exit {status}")
    run = make_attempt(tmp_path / "run", "steps=1 exit=0", fetching=fetching)
    record = finish(run, supervise(run))
    assert record["outcome"] == outcome
    if status:
        assert record["cause"] == "no checkpoint can be fetched: no such bucket"
        assert not (run / "rank-0.log").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fetch_that_is_killed_fails_no_job_for_good(number: int, tmp_path: Path) -> None:
    fetching = ("/bin/sh", "-c", f"kill -{number} $$")
    run = make_attempt(tmp_path / "run", "steps=1 exit=0", fetching=fetching)
    record = finish(run, supervise(run))
    why = f"no checkpoint can be fetched: it was ended by signal {number}"
    assert (record["outcome"], record["cause"]) == ("killed", why)


def test_a_machine_that_cannot_start_a_fetch_now_is_waited_for(tmp_path: Path) -> None:
    run = make_attempt(tmp_path / "run", "steps=1 exit=0", fetching=("/bin/true",))
    with socket.socket(socket.AF_UNIX) as one, chdir(run):
        one.bind("fetching.log")  # it cannot be opened: ENXIO
        record = finish(run, supervise(run))
    assert record["outcome"] == "not_ready"
    assert record["cause"].startswith("no checkpoint can be fetched: /bin/true cannot be started")


def test_a_stop_ends_a_fetch(tmp_path: Path) -> None:
    fetching = ("/bin/sh", "-c", f"touch {tmp_path}/began; exec sleep 600")
    run = make_attempt(tmp_path / "run", "steps=1 exit=0", fetching=fetching)
    process = supervise(run)
    wait_for_file(tmp_path / "began")
    write_json(run / "request.json", {"reason": "cancel"})
    record = finish(run, process)
    assert (record["outcome"], record["cause"]) == ("stopped", "stopped before it began")


def test_the_daemon_knows_after_which_stops_a_job_goes_on() -> None:
    assert {*PURPOSES, YIELD} - {PAUSE} == GOES_ON


SENDS = """
import sys
from zerotools.io.telemetry.datagram_sender import Sender
sender = Sender(sys.argv[1])
for step in range(25):
    sender.send({"event": "uploaded", "step": step, "time": 1.0, "path": "x"}, wait=True)
"""


def test_why_an_upload_failed_is_nothing_that_was_said_before(tmp_path: Path) -> None:
    beside = f"test -e {tmp_path}/begun || {{ touch {tmp_path}/begun; echo uploaded; exit; }}; "
    for name, end, why in (
        ("killed", "echo uploaded more; kill -9 $$", "it was ended by signal 9"),
        ("silent", "exit 3", "it ended with status 3"),
    ):
        (tmp_path / "begun").unlink(missing_ok=True)
        run = make_attempt(
            tmp_path / name, "steps=3 release exit=0", uploading=("/bin/sh", "-c", beside + end)
        )
        process = supervise(run)
        wait_for_file(tmp_path / "begun")
        (run / "release").touch(0o600)
        assert finish(run, process)["uploading"]["why"] == why


def test_all_that_an_upload_tells_is_kept(tmp_path: Path) -> None:
    """The socket holds ten lines."""
    run = make_attempt(
        tmp_path / "run",
        "steps=3 exit=0",
        uploading=(sys.executable, "-c", SENDS, str(tmp_path / "run" / "notify.sock")),
    )
    finish(run, supervise(run))
    sent = {line["step"] for line in progress_of(run) if line["event"] == "uploaded"}
    assert sent == set(range(25))


def test_a_stop_before_training_bounds_the_upload(tmp_path: Path) -> None:
    uploading = ("/bin/sh", "-c", f"touch {tmp_path}/began; exec sleep 1000")
    run = make_attempt(tmp_path / "run", "hang", uploading=uploading, grace_seconds=0.2)
    process = supervise(run)
    wait_for_file(tmp_path / "began")
    write_json(run / "request.json", {"reason": "cancel"})
    record = finish(run, process)
    assert (record["outcome"], record["uploading"]["why"]) == ("stopped", "it was stopped")
