"""What a daemon says that cannot start, and how one stops."""

from __future__ import annotations

import os
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from harness.started import run
from tests.daemon.daemons import FAKE_DAEMON, ROOT, Daemon, make_job
from zerotools.core.errors import BadRequest, DaemonRefused, DaemonUnreachable


def test_a_daemon_whose_socket_is_in_use_leaves_nothing_behind(daemon: Daemon) -> None:
    first = daemon.start().process
    other = daemon.state.parent / "other"
    command = (sys.executable, "-P", str(FAKE_DAEMON), "--state-dir", str(other))
    refused = run(
        (*command, "--socket", str(daemon.state / "api.sock")),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert refused.returncode == DaemonRefused.exit_code
    assert refused.stderr == (
        f"error: another zerotoolsd already listens at {daemon.state / 'api.sock'}\n"
        "hint: stop it, or start with another --socket\n"
    )
    assert not other.exists()
    assert first is not None
    assert first.poll() is None


def test_a_state_directory_that_is_a_file_is_said(daemon: Daemon) -> None:
    daemon.state.write_text("mine")
    assert daemon.spawn().wait(timeout=20) == BadRequest.exit_code
    assert daemon.log.read_text() == (
        f"error: --state-dir {daemon.state}: is a file\n"
        "hint: name a directory, or a path that does not exist\n"
    )


def test_a_second_daemon_on_the_same_state_names_the_first(daemon: Daemon) -> None:
    first = daemon.start().process
    assert first is not None
    assert daemon.spawn().wait(timeout=20) == DaemonRefused.exit_code
    daemon.process = first
    assert daemon.log.read_text().splitlines()[-2:] == [
        f"error: another zerotoolsd, pid {first.pid}, uses the state directory {daemon.state}",
        "hint: stop it, or start with another --state-dir",
    ]


def test_nothing_in_the_state_directory_is_open_to_others_whatever_the_umask_is(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.python = tmp_path / "python"
    daemon.python.write_text(f'#!/bin/sh\numask 0\nexec {sys.executable} "$@"\n')
    daemon.python.chmod(0o700)
    daemon.start()
    for fake, state in (("exit=0", "succeeded"), ("exit=64", "failed")):
        job = daemon.client.submit(make_job(fake))
        assert daemon.wait_for_end(job["id"])["state"] == state
    wanted = {"zerotools.db", "zerotools.db-wal", "history.sqlite3", "daemon.lock", "api.sock"}
    assert wanted <= {each.name for each in daemon.state.iterdir()}
    assert (daemon.run_dir(2) / "rank-1.log").exists()
    for path in (daemon.state, *daemon.state.rglob("*")):
        mode, is_directory = path.lstat().st_mode, path.is_dir()
        if not path.is_symlink():
            assert stat.S_IMODE(mode) == (0o700 if is_directory else 0o600), path


def test_a_client_that_waits_does_not_hold_up_the_stop(daemon: Daemon) -> None:
    daemon.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(daemon.client.events, 0, wait_seconds=50)
        daemon.client.health()
        before = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - before < 40  # where the client would wait for 50
        with suppress(DaemonUnreachable):
            waiting.result(timeout=10)
