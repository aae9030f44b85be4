"""Ensures one attempt at a time, even if Slurm starts a job twice.

A controller that is killed within seconds of a job's start may start it again when it comes back:
while the first copy runs, or after it has finished. A lost node may still work when its job was
queued again and runs elsewhere. So an attempt begins with a rename of its directory, which only one
process can do. Before that, each copy waits until no process of the newest attempt lives. A
directory has a beat in it from the first moment on: without one it would seem to belong to a dead
attempt. A process ends when a newer attempt exists: it was silent for too long.

    attempts/7           of the first copy, with beating nodes
    second copy          waits for it; then finds end.json, and has nothing to do
    attempts/7           silent for 45 s
    second copy          makes attempts/8 and begins; processes of 7 see that and end
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from zerotools.jobs.slurm.job_directory import ATTEMPTS, JobDirectory
from zerotoolsd.slurm.runner.liveness_files import MASTER, LifeSign, Watched

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Turns:
    """The turns of a job's copies. `say` reports to people; `asked` returns whether this copy must
    end."""

    directory: JobDirectory
    submission: int
    say: Callable[[str], None]
    asked: Callable[[], bool]

    def take(self) -> int | None:
        """Return the number of this copy's attempt; None if it has nothing to do.

        Raises OSError if the directory cannot be written.
        """
        told: object = None
        (self.directory.path / ATTEMPTS).mkdir(exist_ok=True)
        while True:
            if (why := self.why_none()) is not None:
                self.say(why)
                return None
            newest = max(self.directory.attempts(), default=0)
            alive = self._alive(newest)
            if not alive:
                if self._begin(newest + 1):
                    return newest + 1
                continue  # another copy was faster
            if told != (told := (newest, alive)):
                self.say(
                    f"attempt {newest} of this job still runs ({', '.join(alive)}): Slurm has "
                    "started the job twice; this copy waits for that one"
                )
            time.sleep(LOOK_SECONDS)

    def _begin(self, number: int) -> bool:
        """Try to make the attempt's directory; return whether this copy has the attempt now."""
        path = self.directory.attempt_path(number)
        draft = path.with_name(f".{number}-{socket.gethostname()}-{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        LifeSign(draft, MASTER).again()
        try:
            draft.rename(path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        return True

    def why_none(self) -> str | None:
        """Return why this copy has nothing to do; None if it has."""
        newest = max(self.directory.submissions(), default=0)
        if newest != self.submission:
            return f"the job was submitted again since (submission {newest}); this copy ends"
        if (end := self.directory.end(self.submission)) is not None:
            return f"the job is over ({end.get('state')}: {end.get('reason')}); this copy ends"
        if self.asked():
            return "cancelled before it began"
        return None

    def others(self) -> list[str]:
        """Return the other processes of the newest attempt."""
        return self._alive(max(self.directory.attempts(), default=0))

    def is_superseded(self, attempt: int) -> bool:
        """Return whether a newer attempt than this one began."""
        return max(self.directory.attempts(), default=0) > attempt

    def _alive(self, attempt: int) -> list[str]:
        if not attempt:
            return []
        return Watched(self.directory.attempt_path(attempt), self.directory.path).alive()
