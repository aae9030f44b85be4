"""Runs the hook commands of a job: before the ranks start, after each new checkpoint, and after the
ranks end.

Commands that run after a checkpoint can be killed without loss, so they are ended together with the
ranks. The output of each command is written to a separate log.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.spawn_child import die_with
from zerotoolsd.supervisor.transient_os_errors import is_transient

THINNING_LOG = "thinning.log"
UPLOADING_LOG = "uploading.log"


class CheckpointCommands:
    """The commands of one attempt that run after each new checkpoint."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._every = (
            RepeatedCommand(plan, progress, plan.thinning, THINNING_LOG),
            RepeatedCommand(plan, progress, plan.uploading, UPLOADING_LOG, from_start=True),
        )

    @property
    def pids(self) -> set[int | None]:
        """Return the pids of the running commands."""
        return {each.pid for each in self._every}

    def start_due(self) -> None:
        """Start each command again if a new checkpoint was saved since its last start."""
        for each in self._every:
            each.start_if_due()

    def ended(self, pids: Container[int]) -> None:
        """Record that the child processes `pids` have ended."""
        for each in self._every:
            each.ended(pids)


class RepeatedCommand:
    """A hook command that runs after each new checkpoint. Two runs never overlap.

    The run directory is the working directory. With `from_start`, the command also runs once at the
    start, for the checkpoints of an earlier attempt.
    """

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        command: Sequence[str],
        log: str,
        *,
        from_start: bool = False,
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._command = command
        self._log = log
        self._seen: object = "nothing yet" if from_start else None
        self.pid: int | None = None

    def start_if_due(self) -> None:
        """Start the command if a checkpoint was saved after the last start of the command."""
        newest = self._progress.checkpoint
        saved = None if newest is None else (newest.get("step"), newest.get("path"))
        if not self._command or self.pid is not None or saved == self._seen:
            return
        self._seen = saved
        try:
            self.pid = self._start()
        except OSError as error:
            log_line(f"{self._command[0]} cannot be started: {error.strerror}")

    def _start(self) -> int:
        with Path(self._log).open("ab") as log:
            process = subprocess.Popen(
                self._command,
                env=dict(self._plan.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with(os.getpid(), self._plan.umask),
            )
        # The supervisor reaps every child itself; without this, Popen would wait for it as well.
        process.returncode = 0
        return process.pid

    def ended(self, pids: Container[int]) -> None:
        """Record that the child processes `pids` have ended."""
        if self.pid is not None and self.pid in pids:
            self.pid = None


LOG = "closing.log"
LOOK_SECONDS = 0.2
KILL_SECONDS = 10.0
_TAIL_BYTES = 4096


def run_until_stop(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], log: str = LOG
) -> dict[str, Any]:
    """Run `command` until it ends or a stop is requested. Return a dict with the keys `status`,
    `why` and `seconds` (the duration).

    `status` is the exit status. It is EX_TEMPFAIL if the machine could not start the command now,
    and None if the command can never be started, or was killed at the stop. `why` is None if the
    command succeeded; otherwise it is the reason of the failure in one line. `stop_asked` returns
    whether a stop is requested. `log` is the file for the output.
    """
    began = time.monotonic()
    status: int | None = None
    try:
        status, why = _run(plan, command, stop_asked, Path(log))
    except OSError as error:
        why = f"{command[0]} cannot be started: {error.strerror}"
        status = os.EX_TEMPFAIL if is_transient(error) else None
    return {"why": why, "status": status, "seconds": time.monotonic() - began}


def _run(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], path: Path
) -> tuple[int | None, str | None]:
    with path.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            env=dict(plan.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with(os.getpid(), plan.umask),
        )
    while True:
        try:
            status = process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop_asked():
                process.kill()
                return None, "it was stopped" + _lingering(process)
        else:
            return status, None if status == 0 else _why(path, begin, status)


def _lingering(process: subprocess.Popen[bytes]) -> str:
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return f", and pid {process.pid} is blocked by a file system that does not respond"
    return ""


def _why(path: Path, begin: int, status: int) -> str:
    """Return the reason why a hook command failed: the last line that the command wrote to its log
    `path`.

    `begin` is the offset in bytes at which the output of this run begins. If there is no output,
    return the exit status as text.
    """
    if status < 0:
        return f"it was ended by signal {-status}"
    data = path.read_bytes()[begin:][-_TAIL_BYTES:]
    lines = data.decode("utf-8", "replace").split("\n")
    said = (line.strip() for line in reversed(lines) if line.strip())
    return next(said, f"it ended with status {status}")
