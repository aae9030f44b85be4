"""Commands that run next to a job's ranks: each runs once for every new checkpoint.

Killing such a command loses nothing, so it ends with the ranks. Its output has a separate log.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Container, Sequence
from pathlib import Path

from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.progress import Progress
from zerotoolsd.supervisor.rank_log import say
from zerotoolsd.supervisor.spawn_child import die_with

THINNING_LOG = "thinning.log"
UPLOADING_LOG = "uploading.log"


class BesideRanks:
    """The commands that run next to the ranks of an attempt."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._every = (
            RepeatedCommand(plan, progress, plan.thinning, THINNING_LOG),
            RepeatedCommand(plan, progress, plan.uploading, UPLOADING_LOG, from_start=True),
        )

    @property
    def pids(self) -> set[int | None]:
        """The pids of the running processes."""
        return {each.pid for each in self._every}

    def look(self) -> None:
        """Start the commands that have something to do."""
        for each in self._every:
            each.look()

    def ended(self, pids: Container[int]) -> None:
        """Record that these children have ended."""
        for each in self._every:
            each.ended(pids)


class RepeatedCommand:
    """At most one process at a time. Works in the run directory. `from_start`: it is started once
    before there is a new checkpoint, for those that an earlier attempt has left to do."""

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

    def look(self) -> None:
        """Start the command if there is a checkpoint that it has not seen."""
        newest = self._progress.checkpoint
        told = None if newest is None else (newest.get("step"), newest.get("path"))
        if not self._command or self.pid is not None or told == self._seen:
            return
        self._seen = told
        try:
            self.pid = self._start()
        except OSError as error:
            say(f"{self._command[0]} cannot be started: {error.strerror}")

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
        """Record that these children have ended."""
        if self.pid is not None and self.pid in pids:
            self.pid = None
