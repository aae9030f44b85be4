"""What follows the ranks, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.daemon.made_attempts import finish, make_attempt, progress_of, supervise, wait_for_file
from zerotoolsd.supervisor.durable import write_json

SENDS = """
import sys
from zerotools.io.telemetry.datagrams import Sender
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
