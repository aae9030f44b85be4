"""Fair share: orders users by their past use of GPUs and their weights.

Users who have used less of their share come first. `UsageReport` reads the booked use of GPUs,
`DecayedUse` and `ranks_of` compute the order of users, and `ShareWeights` reads the weights from
the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.config.config_tables import SharesConfig
from zerotoolsd.queue.store import Store
from zerotoolsd.users.account import NAME_SERVICE, Account, NameLookupTimeout, UnknownAccount

OPEN_HOURS = 48
"""Number of past hours for which bookings may still be added, for example after the machine has
slept.
"""
READ_SECONDS = 10.0
"""Seconds between two readings of new bookings."""


@dataclass(frozen=True, kw_only=True)
class UserShare:
    """The GPU use of one user, for reports.

    Attributes:
        share: the fraction of all GPU use, from 0 to 1, that this user is entitled to among the
            shown users.
        used: the fraction of all GPU use that the user had.
        gpu_seconds: the use in GPU-seconds, in which old use counts less than new use.
        gpu_seconds_in_all: the use in GPU-seconds, in which old and new use count equally.
    """

    uid: int
    weight: float
    share: float
    used: float
    gpu_seconds: float
    gpu_seconds_in_all: float
    factor: float


class UsageReport:
    """Reads the GPU use of users from `store`, and orders the users by their use and by the weights
    in `config`.
    """

    def __init__(self, store: Store, config: SharesConfig) -> None:
        self._booked = store.gpu_use
        self._is_fair = config.fair
        self.half_life = seconds_of(config.half_life)
        self._weight = ShareWeights(config.weights).of
        self._read = (-1, float("-inf"))
        """The number of bookings at the last reading, and the time of that reading in seconds."""
        self._settled = DecayedUse(self.half_life)
        """The use before the hour `_since`. No more bookings are added to those hours."""
        self._since = 0
        self._use = DecayedUse(self.half_life)

    def _used(self, now: float) -> DecayedUse:
        bookings, when = self._read
        if self._booked.bookings != bookings and not 0 <= now - when < READ_SECONDS:
            self._read = (self._booked.bookings, now)
            self._settle(int(now // 3600) - OPEN_HOURS)
            self._use = self._settled.copy()
            _add(self._use, self._booked.rows(self._since), now)
        return self._use

    def _settle(self, hour: int) -> None:
        """Add the bookings of all hours before `hour` to `_settled`, so that these bookings are not
        read again. A year can have a hundred thousand bookings.

        If the clock was set back to before these hours, all bookings are read again.
        """
        if not self._since or hour < self._since:
            self._settled = DecayedUse(self.half_life)
            self._since = hour - int(MOST_HALF_LIVES * self.half_life // 3600)
        if hour > self._since:
            _add(self._settled, self._booked.rows(self._since, hour), hour * 3600.0)
            self._since = hour

    def ranks(self, uids: Collection[int], now: float) -> dict[int, int]:
        """Return the rank of each of the users `uids`: uid -> number, from 0. Jobs of users with a
        lower rank start first. The result is empty if all users have the same rank, because fair
        share is off or there is only one user.
        """
        if len(uids) < 2 or not self._is_fair:
            return {}
        used = self._used(now)
        return ranks_of(uids, {uid: used.of(uid, now) for uid in uids}, self._weight)

    def view(self, uids: Collection[int], now: float) -> list[UserShare]:
        """Return the use of the users `uids` and of all users who have used GPUs. Users are sorted
        from the smallest to the largest use relative to their share.
        """
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
                    factor=fair_share_factor(part, share),
                )
            )
        return sorted(found, key=lambda each: (-each.factor, each.uid))


def _add(use: DecayedUse, rows: Iterable[tuple[int, int, float]], now: float) -> None:
    """Add bookings to `use`. Those of hours after `now`, when the clock was wrong, count as new."""
    for uid, hour, seconds in rows:
        use.add(uid, seconds, min((hour + 0.5) * 3600, now))


EVERYBODY = "*"


class ShareWeights:
    """The weights that the configuration gives to users, keyed by uid. The groups of each user are
    looked up only once.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        find: Callable[[int], Account] = NAME_SERVICE.find,
        groups: Callable[[Account], frozenset[str]] = NAME_SERVICE.groups,
    ) -> None:
        self._weights = weights
        self._find, self._groups = find, groups
        self._known: dict[int, float] = {}

    def of(self, uid: int) -> float:
        """Return the weight of the user `uid`: the user's own weight; otherwise the largest weight
        of the user's groups; otherwise the default weight.

        If the configuration sets no default weight, the default is 1.
        """
        if uid in self._known:
            return self._known[uid]
        try:
            found = self._known[uid] = self._look_up(uid)
        except NameLookupTimeout:  # it is looked up again
            found = self._weights.get(EVERYBODY, 1.0)
        return found

    def _look_up(self, uid: int) -> float:
        everybody = self._weights.get(EVERYBODY, 1.0)
        if not set(self._weights) - {EVERYBODY}:
            return everybody
        names, groups = {str(uid)}, frozenset[str]()
        try:
            account = self._find(uid)
        except NameLookupTimeout:
            raise
        except UnknownAccount:  # it has the weight of everybody else
            pass
        else:
            names.add(account.name)
            groups = self._groups(account)
        own = [weight for name, weight in self._weights.items() if name in names]
        of_groups = [
            weight
            for name, weight in self._weights.items()
            if name.startswith("@") and name[1:] in groups
        ]
        return max(own or of_groups or [everybody])


MOST_HALF_LIVES = 16
"""Use that is older than this many half-lives is dropped; its value would be less than a
fifty-thousandth.
"""


class DecayedUse:
    """The GPU-seconds that each user has used. Old use counts less: it is halved in each half-life.
    Times are in seconds since the epoch.
    """

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self._sums: dict[int, tuple[float, float]] = {}
        """For each uid: the use, and the time for which its value was computed."""

    def add(self, uid: int, seconds: float, when: float) -> None:
        """Add `seconds` GPU-seconds that the user `uid` used at the time `when`."""
        total, at = self._sums.get(uid, (0.0, when))
        newest = max(at, when)
        before = total * self._remaining_fraction(newest - at)
        decayed = before + seconds * self._remaining_fraction(newest - when)
        self._sums[uid] = (decayed, newest)

    def copy(self) -> DecayedUse:
        """Return an independent copy."""
        found = DecayedUse(self.half_life)
        found._sums = dict(self._sums)
        return found

    def of(self, uid: int, now: float) -> float:
        """Return the GPU-seconds of the user `uid`, reduced to their value at the time `now`."""
        total, at = self._sums.get(uid, (0.0, now))
        return total * self._remaining_fraction(now - at)

    def _remaining_fraction(self, age: float) -> float:
        return float(0.5 ** (max(0.0, age) / self.half_life))

    @property
    def uids(self) -> list[int]:
        """Return the uids of the users who have used GPUs."""
        return sorted(self._sums)


def ranks_of(
    uids: Iterable[int], used: Mapping[int, float], weight: Callable[[int], float]
) -> dict[int, int]:
    """Return the rank of each user: uid -> number, from 0. Users are ordered by their use divided
    by their weight, the smallest first. Users with equal quotients get the same rank.
    """
    ratios = {uid: used.get(uid, 0.0) / weight(uid) for uid in uids}
    places = {ratio: place for place, ratio in enumerate(sorted(set(ratios.values())))}
    return {uid: places[ratio] for uid, ratio in ratios.items()}


def fair_share_factor(used_part: float, share: float) -> float:
    """Compare a user's use with the user's share. Return 1 for no use, 0.5 if the use equals the
    share, and a number below 0.5 if the use is above the share.

    `used_part` and `share` are fractions from 0 to 1.
    """
    return 1.0 if used_part <= 0 else float(0.5 ** (used_part / share))
