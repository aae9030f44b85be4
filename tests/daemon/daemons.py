"""A real zerotoolsd in a process of its own, with ranks that only pretend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import forked
from harness.faults import warm
from harness.forked import Forked
from harness.started import Started
from tests.daemon.waiting import wait_for
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import TERMINAL
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.procfs import all_processes

FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")
PRETENDING, REAL = ("-P", str(FAKE_DAEMON)), ("-m", "zerotoolsd")
ROOT = Path(__file__).parents[2]
CONFIG = """
[gpus]
locks = ""
[limits]
cpu_ranks = 8
[stop]
grace_seconds = 20.0
[retry]
first_seconds = 0.01
"""


def make_job(fake: str, **changes: Any) -> JobSpec:
    """A CPU job whose ranks do what `fake` says."""
    job: dict[str, Any] = {
        "name": "fake",
        "device": "cpu",
        "ranks": 2,
        "env": {"FAKE": fake},
        "model": {"config": {}},
        "data": {"text": [str(Path(__file__))]},
        "train": {"steps": 100, "batch_size": 4},
    }
    return job_from_dict({**job, **changes}, source="job")


class Daemon:
    """One state directory, and the daemon that runs on it now."""

    def __init__(
        self, state: Path, config: str = CONFIG, program: tuple[str, ...] = PRETENDING
    ) -> None:
        self.state = state
        self.program = program
        self.python = Path(sys.executable)
        self.config = state.parent / f"{state.name}.toml"
        self.config.write_text(config)
        self.log = state.parent / f"{state.name}.log"
        self.client = DaemonClient(state / "api.sock")
        self.process: Started | Forked | None = None

    def spawn(self, **env: str) -> Started | Forked:
        """Start a daemon without waiting for it: one that pretends from a process that has it
        imported, which saves each half a second; with what the linker or Python reads, anew."""
        arguments = (*self.program, "--state-dir", str(self.state), "--config", str(self.config))
        full = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}", **env}
        pretends = self.program == PRETENDING and self.python == Path(sys.executable)
        anew = not pretends or any(name.startswith(("LD_", "PYTHON")) for name in env)
        with self.log.open("ab") as log:
            # A daemon may serve a module: `daemon_in` ends it, and no single test.
            if anew:
                self.process = Started(
                    (self.python, *arguments),
                    kept=True,
                    env=full,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            else:
                self.process = forked.start(
                    warm.MODULES, arguments, cwd=Path.cwd(), env=full, out=log, kept=True
                )
        return self.process

    def start(self, **env: str) -> Daemon:
        """Start a daemon; returns when it answers."""
        process = self.spawn(**env)
        wait_for(lambda: process.poll() is not None or self._answers(), "the daemon to answer")
        assert process.poll() is None, self.log.read_text()
        return self

    def _answers(self) -> bool:
        try:
            self.client.health()
        except DaemonUnreachable:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, as the kernel or a power loss does it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)

    def wait_for_death(self) -> None:
        """The daemon comes to the point at which it was told to die."""
        assert self.process is not None
        assert self.process.wait(timeout=20) == -signal.SIGKILL, self.log.read_text()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=20)

    def wait_for_state(self, job_id: int, *wanted: str) -> dict[str, Any]:
        """The job, once it is in one of these states."""
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.client.job(job_id))
            return seen["state"] in wanted

        try:
            wait_for(reached, f"job {job_id} to be {' or '.join(wanted)}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}\n{self.log.read_text()}") from None
        return seen

    def wait_for_end(self, job_id: int) -> dict[str, Any]:
        """The job, once it is over."""
        return self.wait_for_state(job_id, *TERMINAL)

    def run_dir(self, job_id: int = 1, attempt: int = 1) -> Path:
        """The directory of an attempt."""
        return self.state / "jobs" / str(job_id) / f"attempt-{attempt}"

    def pids(self, job_id: int = 1, attempt: int = 1) -> list[int]:
        """Supervisor and ranks of an attempt that runs."""
        record = wait_for(
            lambda: (
                (r := read_json(self.run_dir(job_id, attempt) / "run.json")) and "ranks" in r and r
            ),
            "run.json to name the ranks",
        )
        assert isinstance(record, dict)
        return [record["pid"], *(rank["pid"] for rank in record["ranks"])]


@contextmanager
def daemon_in(
    state: Path, config: str = CONFIG, program: tuple[str, ...] = PRETENDING
) -> Iterator[Daemon]:
    """A daemon on `state`; in the end it and every process of its jobs is killed."""
    daemon = Daemon(state, config, program)
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.kill()
        for process in processes_in(state):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes_in(state: Path) -> list[int]:
    """Every process that names `state` in its command line, or is in it, as supervisors are."""
    found = []
    for pid in all_processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            directory = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            continue
        if os.fsencode(state) + b"/" in command or directory.is_relative_to(state):
            found.append(pid)
    return found
