"""Counters that the daemon shows at `/metrics`. All counters are 0 when the daemon starts, as
Prometheus expects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zerotoolsd.interface.prometheus_text import MetricSample
from zerotoolsd.queue.clocks import seconds_in

WAIT_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 86400.0, 7 * 86400.0)
COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)


class Histogram:
    """Counts how many observed values are at most as large as each of several upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one observed value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> tuple[MetricSample, ...]:
        """Return the samples for Prometheus: the cumulative count for each bound, the sum of
        all values, and their number.
        """
        found, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            label = "+Inf" if bound == float("inf") else repr(bound)
            found.append(MetricSample(total, {"le": label}, "_bucket"))
        return (*found, MetricSample(self._sum, {}, "_sum"), MetricSample(total, {}, "_count"))


class MetricCounters:
    """All counters of the daemon. They may be changed only in the thread of the event loop."""

    def __init__(self) -> None:
        self.queue_waits = Histogram(WAIT_BUCKETS)
        self.commits = Histogram(COMMIT_BUCKETS)
        self.attempts: Counter[tuple[str, str]] = Counter()
        """Number of ended attempts, by outcome and cause."""
        self.attempt_seconds = 0.0
        self.training_seconds = 0.0
        """Seconds of `attempt_seconds` in which steps were done that were saved later, or with
        which the job finished.
        """
        self.checkpoint_seconds: float | None = None
        self.checkpoint_bytes: float | None = None
        self.verified_at: float | None = None
        self.loop_lag = 0.0
        """The longest delay of the event loop since the counters were last read, in seconds."""

    def record_lag(self, seconds: float) -> None:
        """Record that the event loop was late by `seconds`."""
        self.loop_lag = max(self.loop_lag, seconds)

    def pop_lag(self) -> float:
        """Return the longest delay of the event loop since the last call, in seconds."""
        lag, self.loop_lag = self.loop_lag, 0.0
        return lag

    def attempt_ended(
        self, outcome: str, cause: str | None, record: Mapping[str, Any], best_step: int
    ) -> None:
        """Count the end of an attempt with this `record`. `best_step` is the newest step that
        earlier attempts saved.

        Ranks can write into the record, so its values are checked.
        """
        self.attempts[outcome, cause or "none"] += 1
        ran = seconds_in(record, "ran_seconds")
        if ran is None:
            return
        self.attempt_seconds += ran
        checkpoint = _tree(record.get("checkpoint"))
        reached = seconds_in(checkpoint, "step")
        if outcome == "finished":
            reached = seconds_in(record, "steps_done")
        each = seconds_in(_tree(record.get("progress")), "step_seconds")
        if reached is not None and each is not None:
            self.training_seconds += min(ran, max(0.0, reached - best_step) * each)
        self._checkpoint(checkpoint)

    def _checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        seconds, size = seconds_in(checkpoint, "seconds"), seconds_in(checkpoint, "bytes")
        self.checkpoint_seconds = self.checkpoint_seconds if seconds is None else seconds
        self.checkpoint_bytes = self.checkpoint_bytes if size is None else size
        when = seconds_in(checkpoint, "time")
        if when is not None and checkpoint.get("verified"):
            self.verified_at = max(when, self.verified_at or 0.0)


def _tree(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
