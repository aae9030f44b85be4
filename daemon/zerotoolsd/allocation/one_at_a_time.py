"""One attempt at a time, whatever Slurm starts twice.

A controller that is killed within seconds of a job's start may start it again when it comes back:
while the first copy runs, or after it has finished. A lost node may still work when its job was
queued again and runs elsewhere. So an attempt begins by giving its directory its name, which only
one can; before that, whoever comes waits until nothing of the newest attempt lives. A directory has
a beat in it from the first moment on: one without would look like that of an attempt whose
processes are gone. Whoever works on an attempt ends when there is a newer one: it was silent for
too long.

    attempts/7           of the first copy, whose nodes beat
    second copy          waits for it; finds end.json then, and has nothing to do
    attempts/7           silent for 45 s
    second copy          makes attempts/8 and begins; what is left of 7 sees that and ends
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
from zerotoolsd.allocation.beats import MASTER, LifeSign, Watched

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Turns:
    """The turns of a job's copies. `say` tells people; `asked` says that this copy is to end."""

    directory: JobDirectory
    submission: int
    say: Callable[[str], None]
    asked: Callable[[], bool]

    def take(self) -> int | None:
        """The number of the attempt that is ours; None: there is nothing to do for this copy.

        Raises OSError: the directory cannot be written.
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
        """Whether the attempt is ours now."""
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
        """Why there is nothing to do for this copy; None: there is."""
        newest = max(self.directory.submissions(), default=0)
        if newest != self.submission:
            return f"the job was submitted again since (submission {newest}); this copy ends"
        if (end := self.directory.end(self.submission)) is not None:
            return f"the job is over ({end.get('state')}: {end.get('reason')}); this copy ends"
        if self.asked():
            return "asked to end before it began"
        return None

    def others(self) -> list[str]:
        """Who works on the newest attempt beside this copy."""
        return self._alive(max(self.directory.attempts(), default=0))

    def is_superseded(self, attempt: int) -> bool:
        """Whether a newer attempt than ours began."""
        return max(self.directory.attempts(), default=0) > attempt

    def _alive(self, attempt: int) -> list[str]:
        if not attempt:
            return []
        return Watched(self.directory.attempt_path(attempt), self.directory.path).alive()
