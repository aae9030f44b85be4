"""The daemon of a fault-injection test, with its own state directory, socket and configuration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from zerotools.core.errors import DaemonError, DaemonUnreachable
from zerotools.jobs.chaos.own_processes import VARIABLE
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.daemon_compatibility import missing_package, why_no_daemon

START_SECONDS = 60.0
STOP_SECONDS = 15.0
ANSWER_SECONDS = 10.0
PAUSE = 0.02
LOG_LINES = 12
CONFIG = """\
[limits]
cpu_ranks = {jobs}
[gpus]
locks = ""
[launch]
by = "child"
[retry]
first_seconds = 0.2
factor = 2.0
most_seconds = 1.0
at_once = {jobs}
[stop]
grace_seconds = 10
"""
_OF_A_SERVICE = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "INVOCATION_ID", "CREDENTIALS_DIRECTORY")


class PrivateDaemon:
    """The daemon of the test in the directory `place`, which runs at most `jobs` jobs at a time."""

    def __init__(self, place: Path, jobs: int) -> None:
        self.place = place
        self.state = place / "state"
        self.log = place / "zerotoolsd.log"
        self.starts = 0
        self.unexpected_exits: list[str] = []
        """A sentence for each time that the daemon ended without being killed by the test."""
        self.is_stopped = False
        """True while the daemon is stopped by SIGSTOP and does not answer."""
        self._config = place / "zerotoolsd.toml"
        self._config.write_text(CONFIG.format(jobs=jobs), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at: float | None = None
        self.client = DaemonClient(self.state / "api.sock", timeout_seconds=ANSWER_SECONDS)

    def begin(self) -> None:
        """Start the daemon for the first time, and wait until it answers.

        Raises:
            BadRequest: a package of the daemon is not installed.
            DaemonUnreachable: the daemon does not start, or does not answer.
        """
        if why_no_daemon() is not None:
            raise missing_package()
        self._start()
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if not self.is_running():
                raise DaemonUnreachable(f"zerotoolsd cannot be started here: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise DaemonUnreachable(
                    f"zerotoolsd did not answer within {START_SECONDS:.0f} s: {self.log_tail()}"
                )
            time.sleep(PAUSE)

    def _start(self) -> None:
        self.starts += 1
        self._start_at, self.is_stopped = None, False
        arguments = ("--state-dir", self.state, "--socket", self.client.socket)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # -P: do not import a zerotoolsd.py of the current directory.
                [sys.executable, "-P", "-m", "zerotoolsd", *arguments, "--config", self._config],
                cwd=self.place,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # only the test gets Ctrl-C, and ends the daemon
            )

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ZEROTOOLS_", *_OF_A_SERVICE))
        }
        return {**kept, VARIABLE: str(self.place)}

    def is_running(self) -> bool:
        """Return whether the daemon's process exists.

        A process that is stopped by SIGSTOP exists, too.
        """
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        """Return whether the daemon answers clients."""
        if self.is_stopped:
            return False
        try:
            self.client.health()
        except DaemonError:
            return False
        return True

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the daemon.

        Return False if the daemon was not running. No other process can have the pid, because the
        daemon is a child that was not waited for.
        """
        if self._process is None or not self.is_running():
            return False
        self._process.send_signal(number)
        return True

    def kill(self, again_in: float) -> bool:
        """Kill the daemon by SIGKILL.

        `keep_up` starts it again after `again_in` seconds. Return False if the daemon was not
        running.
        """
        if not self.send(signal.SIGKILL) or self._process is None:
            return False
        self._process.wait()
        self._start_at = time.monotonic() + again_in
        return True

    def keep_up(self) -> None:
        """If the daemon has ended, start it again after a pause, as a service manager does."""
        if self.is_running():
            return
        if self._start_at is None:
            status = None if self._process is None else self._process.returncode
            self.unexpected_exits.append(f"it ended with status {status}: {self.log_tail()}")
            self._start_at = time.monotonic() + 1.0
        if time.monotonic() >= self._start_at:
            self._start()

    def log_tail(self) -> str:
        """Return the last lines of the daemon's log, for a message."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(lines[-LOG_LINES:]) or "it said nothing"

    def end(self) -> None:
        """End the daemon by SIGTERM, or by SIGKILL if it does not end soon."""
        if self._process is None:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            self.send(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()
