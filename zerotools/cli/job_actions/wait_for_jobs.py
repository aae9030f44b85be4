"""Polls the daemon, also while it restarts, and waits until jobs end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from zerotools.cli.job_views.describe_job import Job, is_over
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import HELD, ON_HOLD, PAUSED

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


T = TypeVar("T")

INTERVAL_SECONDS = 0.4
PATIENCE_SECONDS = 60.0


class Poller:
    """Repeats requests to the daemon at an interval, and waits if the daemon restarts.

    After `clock` has passed `deadline`, a request that failed is not repeated. `print_line` prints
    a line while the daemon does not answer; a caller that draws on the terminal sets another
    function. `pause` and `clock` are time.sleep and time.monotonic, except in tests.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        deadline: float | None = None,
    ) -> None:
        self._interval = interval_seconds
        self._patience = patience_seconds
        self._pause = pause
        self._clock = clock
        self._deadline = deadline
        self.print_line: Callable[[str], None] = _to_stderr

    def call(self, question: Callable[[], T]) -> T:
        """Call `question`, which sends a request, and return its answer. If the daemon does not
        answer, repeat the call for up to a minute."""
        until: float | None = None
        while True:
            try:
                return question()
            except DaemonUnreachable as error:
                if self.is_late:
                    raise
                if until is None:
                    until = self._clock() + self._patience
                    self.print_line(f"warning: {error}; trying again for a minute")
                elif self._clock() > until:
                    raise
            self._pause(self._interval)

    @property
    def is_late(self) -> bool:
        """True if the deadline has passed."""
        return self._deadline is not None and self._clock() >= self._deadline

    def rounds(self) -> Iterator[None]:
        """Yield once per interval, forever."""
        while True:
            yield
            self._pause(self._interval)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


WAIT_SECONDS = 20.0
"""The time in seconds after which the daemon answers a request for events, even if none came."""
PAUSE_SECONDS = 2.0
"""The seconds between two requests for the jobs to an old daemon, which does not number its events.
"""


def waits_for_user(job: Job) -> bool:
    """Return whether the job is held, so that it continues only after a command of a user."""
    return job["state"] in (HELD, ON_HOLD, PAUSED)


class EndingWatch:
    """Waits until the jobs `numbers` have ended.

    It listens to the daemon's events, and fetches the state of a job from the daemon only after an
    event of that job. `open` has the numbers of the jobs that have not ended yet.
    """

    def __init__(
        self, client: DaemonClient | SlurmJobs, numbers: Iterable[Any], poller: Poller
    ) -> None:
        self._client = client
        self._poller = poller
        self.open = set(numbers)
        self.timed_out = False

    def ends(self, deadline: float | None) -> Iterator[dict[str, Any]]:
        """Yield each job when it has ended or is held.

        If `deadline` (of the monotonic clock) passes first, set `timed_out` and stop.
        """
        since = self._poller.call(self._client.health).get("last_event")
        changed = set(self.open)
        while True:
            for number, job in self._jobs(sorted(changed & self.open)):
                if is_over(job) or waits_for_user(job):
                    self.open.discard(number)
                    yield job
            if not self.open:
                return
            left = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return
            since, changed = self._next(since, min(left, WAIT_SECONDS))

    def _jobs(self, numbers: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        if isinstance(self._client, DaemonClient):
            for number in numbers:
                yield number, self._poller.call(partial(self._client.job, number))
        else:
            yield from self._poller.call(partial(self._client.jobs_of, numbers)).items()

    def _next(self, since: int | None, seconds: float) -> tuple[int | None, set[Any]]:
        """Wait at most `seconds` for events. Return the number of the next event, and the numbers
        of the jobs that had events. If `since` is None, because events have no numbers, return None
        and all open jobs."""
        if since is None:
            time.sleep(min(seconds, PAUSE_SECONDS))
            return None, set(self.open)
        client = self._client
        assert isinstance(client, DaemonClient)  # only it numbers its events
        answer = self._poller.call(lambda: client.events(since, wait_seconds=seconds))
        found = {event["job_id"] for event in answer["events"]}
        return int(answer["next"]), {number for number in found if number is not None}
