"""Limits how many restarted jobs load their checkpoints at the same time.

After a reboot every job restarts in the same minute. All of them would read their checkpoints from
one disk or file server at once, each slower than one after the other. An attempt loads from its
start to its first step, or to its end; one that reports no steps counts for `LOADING_SECONDS`.
First attempts neither count nor wait, because users submit them at various times.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from zerotoolsd.config.config_tables import RetryConfig
from zerotoolsd.queue.rows import AttemptRow

LOADING_SECONDS = 30.0
TURN_SECONDS = 1.0
"""Interval in seconds between checks of a job waiting for its turn."""


class RestartThrottle:
    """The restarted attempts without a step since. `is_loading` returns this for a started one."""

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
        """Return why an attempt must not start yet, in one sentence; None if it may."""
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
        return f"waits for its turn to load: {which} now, and retry.at_once = {self._most}"

    def began(self, attempt: AttemptRow) -> None:
        """Record that the attempt has started."""
        if attempt.number > 1:
            self._begun[attempt.token] = (attempt, self._clock())
