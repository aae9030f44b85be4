"""Changes the state of a job: applies the lifecycle, commits one transaction, and announces it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.lifecycle import JobStatus, LifecycleEvent, RetryPolicy
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store

log = logging.getLogger(__name__)


class StateChanger:
    """Changes the states of jobs in the queue `store`. `announce` is called after each commit."""

    def __init__(self, store: Store, policy: RetryPolicy, announce: Callable[[], None]) -> None:
        self.store = store
        self.policy = policy
        self._announce = announce

    def state_after(self, job: JobRow, event: LifecycleEvent) -> JobStatus:
        """Return the state of `job` after `event`, without changing it. Raises NotAllowed."""
        return lifecycle.advance_job(job.standing, event, now=time.time(), policy=self.policy)

    def move(self, job: JobRow, after: JobStatus, kind: str) -> None:
        """Change the state of `job` to `after` in the database, and record the change as an event
        of the kind `kind`.

        Raises sqlite3.OperationalError if the change cannot be committed now.
        """
        with self.store.change(job, after, kind, now=time.time()):
            pass
        self.publish(job, after)

    def apply(self, job: JobRow, event: LifecycleEvent) -> JobStatus:
        """Apply `event` to `job` and commit the new state. Return the new state.

        Raises NotAllowed. Raises sqlite3.OperationalError if the change cannot be committed now.
        """
        after = self.state_after(job, event)
        self.move(job, after, lifecycle.name_of(job.standing, event))
        return after

    def publish(self, job: JobRow, after: JobStatus) -> None:
        """Write a log line about a committed change of `job` to the state `after`, and announce
        the change.
        """
        self.store.transactions.when_committed(lambda: self._publish(job, after))

    def _publish(self, job: JobRow, after: JobStatus) -> None:
        because = f": {after.reason}" if after.reason else ""
        log.info("job %d (%s): %s -> %s%s", job.id, job.name, job.state, after.state, because)
        self._announce()


def policy_of(config: RetryConfig) -> RetryPolicy:
    """Return the configured waits before restarts."""
    return RetryPolicy(
        first_seconds=config.first_seconds,
        factor=config.factor,
        most_seconds=config.most_seconds,
    )
