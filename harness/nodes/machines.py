"""A machine in a network namespace: its daemon, and the processes on it that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.nodes.namespaces import inside
from harness.patience import Deadline
from harness.started import Started
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[limits]
cpu_ranks = 4
[web]
enabled = false
[warm_start]
enabled = true
[retry]
first_seconds = 0.5
"""
TARGETS = ("rank", "supervisor", "daemon", "machine")


class NodeMachine:
    """The machine number `node`. Its processes run in the network namespace `name`."""

    def __init__(self, node: int, name: str, directory: Path) -> None:
        self.node, self.name = node, name
        self.state = directory / f"state-{node}"
        self.config = directory / f"zerotoolsd-{node}.toml"
        self.config.write_text(CONFIG)
        self.log = directory / f"daemon-{node}.log"
        self.client = DaemonClient(self.state / "api.sock")
        self.daemon: Started | None = None

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        where = ("--state-dir", str(self.state), "--config", str(self.config))
        command = inside(self.name, [sys.executable, "-m", "zerotoolsd", *where])
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"}
        with self.log.open("ab") as log:
            self.daemon = Started(
                command, kept=True, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_for(self._answers, "the daemon to answer")

    def _answers(self) -> bool:
        try:
            self.client.health()
        except DaemonUnreachable:
            return False
        return True

    def submit(self, tree: dict[str, Any]) -> int:
        """Queue the job on this machine, and return its number."""
        return int(self.client.submit(job_from_dict(tree, source="job"))["id"])

    def step(self, job: int) -> int:
        """Return the newest step of the job that the daemon knows."""
        progress = self.client.job(job).get("progress") or {}
        return int(progress.get("step") or 0)

    def ended(self, job: int) -> bool:
        return self.client.job(job)["state"] in TERMINAL

    def kill(self, target: str, job: int) -> None:
        """Send SIGKILL to `target`: "rank", "supervisor", "daemon", or "machine" for all
        processes.
        """
        if target == "machine":
            for pid in self.processes():
                _kill(pid)
            self._reap()
            return
        if target == "daemon":
            assert self.daemon is not None
            _kill(self.daemon.pid)
            self._reap()
            return
        record = json.loads(self._newest(job).read_text())
        _kill(record["ranks"][-1]["pid"] if target == "rank" else record["pid"])

    def _reap(self) -> None:
        assert self.daemon is not None
        self.daemon.wait(20)

    def _newest(self, job: int) -> Path:
        runs = (self.state / "jobs" / str(job)).glob("attempt-*/run.json")
        return max(runs, key=lambda path: path.stat().st_mtime)

    def processes(self) -> list[int]:
        """Return the pids of all processes of this machine: daemon, fork servers, supervisors and
        ranks.
        """
        return [pid for pid, words in _commands() if str(self.state) in words]

    def left(self, job: int) -> list[int]:
        """Return the pids of the processes of all attempts of `job`."""
        return [pid for pid, words in _commands() if f"{self.state}/jobs/{job}/" in words]

    def losses(self, job: int) -> dict[int, float]:
        """Return the losses, keyed by step. If attempts did the same step, the loss of the last
        attempt is used.
        """
        found: dict[int, float] = {}
        directories = (self.state / "jobs" / str(job)).glob("attempt-*")
        for directory in sorted(directories, key=lambda path: int(path.name.split("-")[1])):
            for line in (directory / "progress.jsonl").read_text().splitlines():
                with suppress(ValueError):
                    told = json.loads(line)
                    if told.get("event") == "step":
                        found[told["step"]] = told["loss"]
        return found

    def wait_for(self, there: Any, what: str, seconds: float = 240.0) -> None:
        """Wait until the function `there` returns True.

        Raises:
            AssertionError: this did not happen within `seconds`. The message contains `what`.
        """
        deadline = Deadline(seconds)
        while not there():
            assert not deadline.has_passed(), f"machine {self.node}: no {what}"
            time.sleep(0.05)

    def end(self) -> None:
        """Kill all processes of this machine."""
        for pid in self.processes():
            _kill(pid)
        if self.daemon is not None:
            self.daemon.end()


def _commands() -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            # A fork server's children and the supervisor have their directory as that alone.
            yield process.pid, f"{words} {process.cwd()}/"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
