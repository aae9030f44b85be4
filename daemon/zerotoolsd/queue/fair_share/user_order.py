"""Fair share: the order of users by their past use of GPUs. Pure.

Use counts half after one half-life, a quarter after two: a `DecayedUse` adds it up. Of two users
with waiting jobs of the same priority, the one goes first who has used less in relation to the
weight that the administrator set. So over time each gets GPU-hours in proportion to the weights, up
to the demand, and unused shares go to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

MOST_HALF_LIVES = 16
"""Older use does not count: less than a fifty-thousandth of it would remain."""


class DecayedUse:
    """GPU-seconds by uid, which decay. Times are seconds since the epoch."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self._sums: dict[int, tuple[float, float]] = {}
        """The decayed use of each user, and its time."""

    def add(self, uid: int, seconds: float, when: float) -> None:
        """Add a use of so many GPU-seconds around `when`."""
        total, at = self._sums.get(uid, (0.0, when))
        newest = max(at, when)
        decayed = total * self._left(newest - at) + seconds * self._left(newest - when)
        self._sums[uid] = (decayed, newest)

    def copy(self) -> DecayedUse:
        """Return a copy, to which more use can be added."""
        found = DecayedUse(self.half_life)
        found._sums = dict(self._sums)
        return found

    def of(self, uid: int, now: float) -> float:
        """Return the decayed use at `now`."""
        total, at = self._sums.get(uid, (0.0, now))
        return total * self._left(now - at)

    def _left(self, age: float) -> float:
        return float(0.5 ** (max(0.0, age) / self.half_life))

    @property
    def uids(self) -> list[int]:
        """The users with any use."""
        return sorted(self._sums)


def ranks_of(
    uids: Iterable[int], used: Mapping[int, float], weight: Callable[[int], float]
) -> dict[int, int]:
    """Return the order of users from 0, by use divided by weight; equal ratios have equal ranks."""
    ratios = {uid: used.get(uid, 0.0) / weight(uid) for uid in uids}
    places = {ratio: place for place, ratio in enumerate(sorted(set(ratios.values())))}
    return {uid: places[ratio] for uid, ratio in ratios.items()}


def factor(used_part: float, share: float) -> float:
    """Return how far a user is below the share, both as parts of 1.

    The value is 1 without any use, 0.5 at exactly the share, and approaches 0 beyond it.
    """
    return 1.0 if used_part <= 0 else float(0.5 ** (used_part / share))
