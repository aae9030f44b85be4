"""What thins a job's older checkpoints beside its ranks: a command, once for each new checkpoint.

It loses nothing where it is killed, so it ends with the ranks. What it says is in `thinning.log`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Container
from pathlib import Path

from zerotoolsd.supervisor.children.spawning import die_with
from zerotoolsd.supervisor.logs import say
from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.progress import Progress

LOG = "thinning.log"


class Thinner:
    """At most one process at a time. Works in the run directory."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._seen: object = None
        self.pid: int | None = None

    def look(self) -> None:
        """Start the command if there is a checkpoint that it has not seen."""
        newest = self._progress.checkpoint
        told = None if newest is None else (newest.get("step"), newest.get("path"))
        if not self._plan.thinning or self.pid is not None or told in (None, self._seen):
            return
        self._seen = told
        try:
            self.pid = self._start()
        except OSError as error:
            say(f"{self._plan.thinning[0]} cannot be started: {error.strerror}")

    def _start(self) -> int:
        with Path(LOG).open("ab") as log:
            process = subprocess.Popen(
                self._plan.thinning,
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
        """Some children have ended."""
        if self.pid is not None and self.pid in pids:
            self.pid = None
