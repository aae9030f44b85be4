"""The users' booked use of GPUs, and their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.config.config_tables import SharesConfig
from zerotoolsd.queue.fair_share.share_weights import ShareWeights
from zerotoolsd.queue.fair_share.user_order import MOST_HALF_LIVES, DecayedUse, factor, ranks_of
from zerotoolsd.queue.store import Store

OPEN_HOURS = 48
"""Hours before this one that may still get bookings, for example after a machine slept."""
READ_SECONDS = 10.0
"""Bookings are read again after this time, if there are new ones."""


@dataclass(frozen=True, kw_only=True)
class UserShare:
    """One user. `share` is the fair part among the shown users, and `used` the actual one, both
    parts of 1; `gpu_seconds` decays, `gpu_seconds_in_all` does not."""

    uid: int
    weight: float
    share: float
    used: float
    gpu_seconds: float
    gpu_seconds_in_all: float
    factor: float


class UsageReport:
    """The bookings in `store`, by the administrator's `config`."""

    def __init__(self, store: Store, config: SharesConfig) -> None:
        self._booked = store.gpu_use
        self._is_fair = config.fair
        self.half_life = seconds_of(config.half_life)
        self._weight = ShareWeights(config.weights).of
        self._read = (-1, float("-inf"))
        """The number of bookings when it was read, and when that was."""
        self._settled = DecayedUse(self.half_life)
        """The use before the hour `_since`, which gets no more bookings."""
        self._since = 0
        self._use = DecayedUse(self.half_life)

    def _used(self, now: float) -> DecayedUse:
        bookings, when = self._read
        if self._booked.bookings != bookings and not 0 <= now - when < READ_SECONDS:
            self._read = (self._booked.bookings, now)
            self._settle(int(now // 3600) - OPEN_HOURS)
            self._use = self._settled.copy()
            _add(self._use, self._booked.rows(self._since))
        return self._use

    def _settle(self, hour: int) -> None:
        """Add up the use before `hour` permanently: a year has a hundred thousand rows."""
        if not self._since:
            self._since = hour - int(MOST_HALF_LIVES * self.half_life // 3600)
        if hour > self._since:
            _add(self._settled, self._booked.rows(self._since, hour))
            self._since = hour

    def ranks(self, uids: Collection[int], now: float) -> dict[int, int]:
        """Return the order of these users, from 0."""
        if len(uids) < 2 or not self._is_fair:
            return {}
        used = self._used(now)
        return ranks_of(uids, {uid: used.of(uid, now) for uid in uids}, self._weight)

    def view(self, uids: Collection[int], now: float) -> list[UserShare]:
        """Return these users and all with some use, the smallest part of their share first."""
        self._read = (-1, float("-inf"))
        used = self._used(now)
        whole = self._booked.in_all()
        known = sorted({*uids, *used.uids, *whole})
        total = sum(used.of(uid, now) for uid in known)
        weights = sum(map(self._weight, known))
        found = []
        for uid in known:
            mine, share = used.of(uid, now), self._weight(uid) / weights
            part = mine / total if total else 0.0
            found.append(
                UserShare(
                    uid=uid,
                    weight=self._weight(uid),
                    share=share,
                    used=part,
                    gpu_seconds=mine,
                    gpu_seconds_in_all=whole.get(uid, 0.0),
                    factor=factor(part, share),
                )
            )
        return sorted(found, key=lambda each: (-each.factor, each.uid))


def _add(use: DecayedUse, rows: Iterable[tuple[int, int, float]]) -> None:
    for uid, hour, seconds in rows:
        use.add(uid, seconds, (hour + 0.5) * 3600)
