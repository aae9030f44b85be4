"""A job on a file system that never answers holds up no command that shows jobs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from harness.patience import patient
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, an_attempt
from tests.daemon.hung_disks import hung_disk
from zerotools.jobs.client.daemon_address import RemoteMachine, forget_forwarding, record_forwarding
from zerotools.jobs.client.daemon_client import DaemonClient

QUIET = {"doing": None, "since": None, "last_progress": 0.0, "quiet": True, "last_line": None}
COMMANDS = (
    *("queue", "queue --all", "queue --json", "show 1", "show 1 --spec", "show 1 --json"),
    *("explain 1", "priority 1 3", "show 2"),
)


@pytest.mark.parametrize("where", ["here", "on another machine"])
def test_no_command_opens_the_paths_of_a_job(
    zerotools: Command, service: FakeService, client: DaemonClient, tmp_path: Path, where: str
) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this process may not mount a file system")
        out = str(disk.door / "runs")
        saved = {"step": 10, "path": f"{out}/step-10", "verified": None, "not_verified": None}
        begun = {"progress": STEP, "phase": QUIET, "attempts": (an_attempt(resumed_from=out),)}
        for state, more in (("queued", {}), ("running", begun)):
            view = service.add(state=state, output_dir=out, latest_checkpoint=saved, **more)
            program = {"launcher": "plain", "checkpoint_dir": out}
            named = {"output_dir": out, "resume_from": f"{out}/step-1", "script": program}
            service.change(view.id, spec={**view.spec, **named})
        if where != "here":
            record_forwarding(
                client.socket, RemoteMachine("box", "/s", str(disk.door), os.geteuid(), {})
            )
        disk.hang()
        late = threading.Timer(patient(20), disk.let_go)
        late.start()
        try:
            for words in COMMANDS:
                done = zerotools(*words.split())
                assert (words, done.status, done.err) == (words, 0, "")
                assert not disk.is_awaited, words
        finally:
            late.cancel()
            forget_forwarding(client.socket)
