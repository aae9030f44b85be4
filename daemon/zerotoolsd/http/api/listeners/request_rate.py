"""Limits the rate of each user's requests, so that a runaway script does not block the others."""

from __future__ import annotations

from dataclasses import dataclass

PER_SECOND = 2000.0
"""Requests of one uid in a second, for long; more than a daemon on two cores can answer."""
AT_ONCE = 8000.0
MOST_USERS = 4096


@dataclass
class _Bucket:
    left: float
    filled: float


class RateLimit:
    """A bucket of `at_once` requests for each uid, filled by `per_second`."""

    def __init__(self, per_second: float = PER_SECOND, at_once: float = AT_ONCE) -> None:
        self.per_second = per_second
        self._at_once = at_once
        self._buckets: dict[int, _Bucket] = {}

    def wait_for(self, uid: int, now: float) -> float:
        """Return 0 and count the request; or return the seconds until one is allowed."""
        if len(self._buckets) > MOST_USERS:
            self._buckets.clear()
        bucket = self._buckets.setdefault(uid, _Bucket(self._at_once, now))
        gained = max(0.0, now - bucket.filled) * self.per_second
        bucket.left, bucket.filled = min(self._at_once, bucket.left + gained), now
        if bucket.left < 1:
            return (1 - bucket.left) / self.per_second
        bucket.left -= 1
        return 0.0
