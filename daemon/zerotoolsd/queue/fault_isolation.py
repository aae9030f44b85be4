"""Isolates faults: unexpected data of one job holds only that job.

Code that reads a job's data runs inside `JobGuard.guard`. If it raises an unexpected error, the job
is held with a reason, and the traceback goes to `held.log` in its directory. The other jobs
continue. No error ends the daemon's loop (`GuardedRounds`), except a lack of memory in several
rounds in a row.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zerotoolsd.queue.rows import UnreadableSpec
from zerotoolsd.supervisor.transient_os_errors import is_transient

TAKING_UP = "reattaching to it"
RETRYING = "queueing it again"
WAITING_FOR = "checking what the job waits for"
TIMING = "checking its time limit"
COUNTING = "counting its ranks"
NEEDING = "computing its needs"
PLACING = "finding its position in the queue"
STARTING = "starting it"
STOPPING = "asking it to stop"
ENDING = "recording its end"
RELEASING = "freeing its GPUs"

FAULT_SECONDS = 1.0
"""Seconds to wait before the next round, after a round that raised an error."""
STARVED_ROUNDS = 5
"""After this many rounds in a row without enough memory the daemon ends. Its service manager
starts it again.
"""

HELD_LOG = "held.log"
_MAX_LOG_BYTES = 1 << 20
_LONGEST_MESSAGE = 300

log = logging.getLogger(__name__)

HoldJob = Callable[[int, str], None]
"""A function that holds a job for a reason. It raises sqlite3.OperationalError if the hold
cannot be committed now.
"""
Touch = Callable[[int, str], None]
"""A function that is called with (job, activity) before the data of a job is read. Tests use it
to cause an error.
"""


DeferJob = Callable[[int, str], None]
"""A function that is called with (job, reason) after an error of the machine, so that the job
is checked again later.
"""


def _ignore(job_id: int, why: str) -> None:
    log.warning("job %d: %s", job_id, why)


class JobGuard:
    """Holds a job if its data causes an unexpected error. If the hold cannot be written to the
    database, it is written later (`settle`).
    """

    def __init__(
        self, jobs_dir: Path, hold: HoldJob, touch: Touch, defer: DeferJob = _ignore
    ) -> None:
        self._jobs_dir = jobs_dir
        self._hold = hold
        self._defer = defer
        self.touch = touch
        self._waiting: dict[int, str] = {}
        self._logged: set[tuple[int, str]] = set()

    @contextmanager
    def guard(self, job_id: int, doing: str) -> Iterator[Callable[[], None]]:
        """Return a context manager that protects other jobs from errors in its body. If the body
        raises an exception, the job `job_id` is held, and the exception is not passed on.

        `doing` names the activity in the reason of the hold. A temporary error of the machine does
        not hold the job; the job is checked again later. Only sqlite3.OperationalError is passed on
        to the caller. The context manager yields a function that the body must call first; tests
        use it to cause an error.
        """
        try:
            yield lambda: self.touch(job_id, doing)
        except sqlite3.OperationalError:
            raise
        except UnreadableSpec as error:
            log.warning("%s", error)
            self._hold_job(job_id, str(error))
        except MemoryError:
            self._defer(job_id, f"{doing} failed (the daemon has no memory left)")
        except OSError as error:
            if is_transient(error):
                self._defer(job_id, f"{doing} failed ({error})")
            else:
                self._hold_job(job_id, self._reason(job_id, doing, error))
        except Exception as error:  # whatever the error is, it must not affect other jobs
            self._hold_job(job_id, self._reason(job_id, doing, error))

    def _reason(self, job_id: int, doing: str, error: Exception) -> str:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST_MESSAGE]
        why = f"{doing} failed ({what})"
        path = self._jobs_dir / str(job_id) / HELD_LOG
        if (job_id, why) not in self._logged:
            self._logged.add((job_id, why))
            log.error("job %d: %s", job_id, why, exc_info=error)
            _append(path, why, error)
        return f"{why}: a defect in zerotoolsd, or a damaged record; {path} has the details"

    def _hold_job(self, job_id: int, why: str) -> None:
        self._waiting[job_id] = why
        self.settle()

    def settle(self) -> bool:
        """Write the holds that could not be written to the database before. Return whether all of
        them are written now.
        """
        for job_id, why in list(self._waiting.items()):
            try:
                self._hold(job_id, why)
            except sqlite3.OperationalError as error:
                log.error("job %d cannot be held yet: %s", job_id, error)
            else:
                del self._waiting[job_id]
        return not self._waiting


def _append(path: Path, why: str, error: Exception) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"{moment} {why}\n{''.join(traceback.format_exception(error))}\n"
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, flags, 0o600)
        try:
            if os.fstat(fd).st_size < _MAX_LOG_BYTES:
                os.write(fd, text.encode(errors="backslashreplace")[:_MAX_LOG_BYTES])
        finally:
            os.close(fd)
    except OSError as problem:
        log.error("%s cannot be written: %s", path, problem.strerror)


class GuardedRounds:
    """Runs the rounds of the daemon's loop, and continues after a round that raised an error."""

    def __init__(self) -> None:
        self._starved = 0

    async def run_round(self, step: Callable[[], Awaitable[float]]) -> float:
        """Run one round by calling `step`. Return the seconds until the next round is due.

        Raises MemoryError after several rounds in a row without enough memory.
        """
        try:
            pause = await step()
        except MemoryError:
            self._starved += 1
            if self._starved == STARVED_ROUNDS:
                raise
            log.error("the daemon has no memory left; next try in %g s", FAULT_SECONDS)
            return FAULT_SECONDS
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written (next try in %g s): %s", FAULT_SECONDS, error)
            return FAULT_SECONDS
        except Exception:  # not caused by a job, or the job would be held
            log.exception("an error in zerotoolsd; next try in %g s", FAULT_SECONDS)
            return FAULT_SECONDS
        self._starved = 0
        return pause
