"""Delays the start of jobs after an error of the machine, and while too many jobs load checkpoints
at once.

No job is to blame for a full disk, a lack of inodes or file descriptors, or a disk that does not
respond. If the start of an attempt fails for such a reason, the attempt keeps its state
`launching`, its token and its directory, and is started again later. This does not count as a
restart of the job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.rows import AttemptRow

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Wait:
    why: str
    tries: int
    is_turn: bool
    due: float | None
    """The monotonic time at which the start is tried again; None while it is being tried."""
    since: float
    """The monotonic time of the first delay for this reason."""


class StartBackoff:
    """Delays before the starts of jobs, keyed by job number.

    `wake` is called after a new delay, because the dispatcher's loop might otherwise sleep longer
    than the delay.
    """

    def __init__(
        self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._waits: dict[int, _Wait] = {}

    def wait_for_turn(self, job_id: int, why: str, seconds: float) -> None:
        """Delay the start of the job by `seconds`, because it waits for other jobs."""
        now = self._clock()
        self._waits[job_id] = _Wait(why, 0, True, now + seconds, now)
        self._wake()

    def put_off(self, job_id: int, why: str) -> None:
        """Delay the start of the job because of an error of the machine. Each delay is twice as
        long as the one before, but at most MOST_SECONDS.
        """
        before = self._waits.get(job_id)
        now = self._clock()
        tries, since = 0, now
        if before is not None and not before.is_turn:
            tries = before.tries + 1
            since = before.since if before.why == why else now
        seconds = min(FIRST_SECONDS * 2 ** min(tries, 20), MOST_SECONDS)
        if before is None or before.why != why:
            log.warning("job %d waits: %s", job_id, _sentence(why))
        self._waits[job_id] = _Wait(why, tries, False, now + seconds, since)
        self._wake()

    def seconds(self, job_id: int) -> float:
        """Return for how many seconds the start has been delayed because of the present error of
        the machine; 0 if it is not delayed.
        """
        wait = self._waits.get(job_id)
        return 0.0 if wait is None or wait.is_turn else self._clock() - wait.since

    def pop_due(self) -> list[int]:
        """Return, only once, the numbers of the jobs that have waited long enough."""
        now = self._clock()
        due = [j for j, wait in self._waits.items() if wait.due is not None and wait.due <= now]
        for job_id in due:
            wait = self._waits[job_id]
            self._waits[job_id] = replace(wait, due=None)
        return due

    def forget(self, job_id: int) -> None:
        """Remove the delay of the job, because the job has started or ended."""
        self._waits.pop(job_id, None)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._waits

    @property
    def pauses(self) -> list[float]:
        """Return the seconds that are left of each delay."""
        now = self._clock()
        return [max(0.0, w.due - now) for w in self._waits.values() if w.due is not None]

    def why(self, job_id: int) -> str | None:
        """Return a sentence on why the start of the job is delayed; None if it is not delayed."""
        wait = self._waits.get(job_id)
        if wait is None:
            return None
        return wait.why if wait.is_turn else _sentence(wait.why)


def _sentence(why: str) -> str:
    return f"the machine is not ready: {why}; the start will be tried again"


LOADING_SECONDS = 30.0
TURN_SECONDS = 1.0
"""Seconds between two checks of a job that waits because other jobs load their checkpoints."""


class RestartThrottle:
    """Limits how many restarted attempts load their checkpoints at the same time.

    `is_loading` returns whether a started attempt has not done a step yet.
    """

    def __init__(
        self,
        config: RetryConfig,
        is_loading: Callable[[AttemptRow], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = config.at_once
        self._is_loading = is_loading
        self._clock = clock
        self._begun: dict[str, tuple[AttemptRow, float]] = {}

    def why_not_now(self, attempt: AttemptRow) -> str | None:
        """Return a sentence on why the attempt must not start yet; None if it may start."""
        if attempt.number == 1 or attempt.token in self._begun:
            return None
        now = self._clock()
        self._begun = {
            token: (each, began)
            for token, (each, began) in self._begun.items()
            if now - began < LOADING_SECONDS and self._is_loading(each)
        }
        if len(self._begun) < self._most:
            return None
        jobs = ", ".join(str(each.job_id) for each, _ in self._begun.values())
        which = f"job {jobs} loads" if len(self._begun) == 1 else f"jobs {jobs} load"
        return (
            f"waits: {which} now, and at most {self._most} restarted jobs may load at the same "
            "time (retry.at_once)"
        )

    def began(self, attempt: AttemptRow) -> None:
        """Record that the attempt was started."""
        if attempt.number > 1:
            self._begun[attempt.token] = (attempt, self._clock())
