"""Fair share: who among the users goes first, by what each has used of the GPUs. Pure.

What a user used counts half after a half-life, a quarter after two: a `DecayedUse` adds it up. Of
two users whose jobs wait with the same priority, the one goes first who has used less for the
weight that the administrator gave them. So over time each gets GPU-hours in proportion to their
weights, as far as they ask for them, and what one does not use goes to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

MOST_HALF_LIVES = 16
"""What is older counts for nothing: less than a fifty-thousandth of it would be left."""


class DecayedUse:
    """GPU-seconds by uid, which decay. Times are seconds since the epoch."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self._sums: dict[int, tuple[float, float]] = {}
        """What each has used, and when that was so."""

    def add(self, uid: int, seconds: float, when: float) -> None:
        """The user used so many GPU-seconds around `when`."""
        total, at = self._sums.get(uid, (0.0, when))
        newest = max(at, when)
        decayed = total * self._left(newest - at) + seconds * self._left(newest - when)
        self._sums[uid] = (decayed, newest)

    def copy(self) -> DecayedUse:
        """The same, to which something else may be added."""
        found = DecayedUse(self.half_life)
        found._sums = dict(self._sums)
        return found

    def of(self, uid: int, now: float) -> float:
        """What counts of it now."""
        total, at = self._sums.get(uid, (0.0, now))
        return total * self._left(now - at)

    def _left(self, age: float) -> float:
        return float(0.5 ** (max(0.0, age) / self.half_life))

    @property
    def uids(self) -> list[int]:
        """Whoever has used something."""
        return sorted(self._sums)


def ranks_of(
    uids: Iterable[int], used: Mapping[int, float], weight: Callable[[int], float]
) -> dict[int, int]:
    """Who goes first, from 0: by what they used for their weight; of the same, the same rank."""
    ratios = {uid: used.get(uid, 0.0) / weight(uid) for uid in uids}
    places = {ratio: place for place, ratio in enumerate(sorted(set(ratios.values())))}
    return {uid: places[ratio] for uid, ratio in ratios.items()}


def factor(used_part: float, share: float) -> float:
    """How far a user is from their share, both parts of 1: 1 nothing was used, 0.5 just the share,
    and towards 0 what is beyond it."""
    return 1.0 if used_part <= 0 else float(0.5 ** (used_part / share))
