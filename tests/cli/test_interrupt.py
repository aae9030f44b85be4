"""Ctrl-C: the job goes on, the terminal is as it was, and nobody sees a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from harness.started import Started
from tests.cli.commands.test_submit import JOB
from tests.daemon.http.api.fakes import FakeService
from zerotools.jobs.client.daemon_client import DaemonClient


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What comes, until it contains `wanted` or ends."""
    seen = b""
    while wanted not in seen:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # the other end of a terminal was closed
            break
        if not part:
            break
        seen += part
    return seen


def test_a_followed_job_goes_on(service: FakeService, client: DaemonClient, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(JOB, encoding="utf-8")
    command = [sys.executable, "-m", "zerotools", "submit", "-f", str(tmp_path / "tiny.toml")]
    with Started(
        [*command, "--socket", str(client.socket)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), b"job 1 (tiny) queued: ")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert said.strip() == (
        "job 1 (tiny) continues in the background; read its log: zerotools logs -f 1, stop it: "
        "zerotools cancel 1"
    )
    assert service.views[1].state == "queued"


def test_the_monitor_gives_the_terminal_back(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "zerotools", "monitor", "--interval", "60"]
    with Started(
        [*command, "--socket", str(tmp_path / "no.sock")], stdout=child, stderr=subprocess.PIPE
    ) as process:
        os.close(child)
        seen = read_until(parent, b"no daemon answers")
        assert seen.startswith(b"\x1b[?1049h\x1b[?25l")
        process.send_signal(signal.SIGINT)
        seen = read_until(parent, b"\x1b[?25h\x1b[?1049l")
        assert seen.endswith(b"\x1b[?25h\x1b[?1049l")
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(30) == 130
    os.close(parent)
