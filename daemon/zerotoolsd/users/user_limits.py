"""The limits of one user in the queue and on the machine, from `[users]`.

The keys of `[users]` apply to everybody; a table in `[users.limits]` applies to one user, or to
each member of a group. If several tables apply to a user, the user's own table has precedence over
the tables of groups. Among the tables of groups, the largest value counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from zerotools.core.counts_and_sizes import bytes_of
from zerotoolsd.users.account import NAME_SERVICE, Account, NameLookupTimeout, UnknownAccount

OTHERS_QUEUE_BYTES = 2**30
"""The default of `queue_bytes` for every user except root and the daemon's user."""
KNOWN_SECONDS = 60.0
"""Seconds that the groups of a user are cached."""


@dataclass(frozen=True, kw_only=True)
class UserLimits:
    """The limits of one user in the queue and on the machine; None: no limit."""

    max_queued: int | None = None
    max_running: int | None = None
    max_gpus: int | None = None
    max_cpu_ranks: int | None = None
    queue_bytes: int | None = None

    @property
    def bound_running(self) -> bool:
        """Whether any of these limits applies to running jobs."""
        return (self.max_running, self.max_gpus, self.max_cpu_ranks) != (None, None, None)


NAMES = tuple(each.name for each in fields(UserLimits))


def limits_in(tree: Mapping[str, int | str]) -> dict[str, int]:
    """Return the limits in a table of the configuration, as numbers.

    Raises ValueError if a value is not a number or a size.
    """
    found = {}
    for name, value in tree.items():
        if name not in NAMES:
            raise ValueError(f"{name}: unknown key; known keys: {', '.join(NAMES)}")
        try:
            number = bytes_of(value) if name == "queue_bytes" else value
        except ValueError as error:
            raise ValueError(f"{name} = {value!r}: {error}") from None
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"{name} = {value!r}: must be a whole number of at least 0")
        found[name] = number
    return found


class LimitsOfUsers:
    """Finds the limits of each user.

    Attributes:
        everybody: the limits of all users.
        tables: the limits of single users and groups, keyed by name or uid.
        find: looks up the account of a uid.
        groups: returns the groups of an account.
        own: the daemon's uid.
    """

    def __init__(
        self,
        everybody: Mapping[str, int | str] = MappingProxyType({}),
        tables: Mapping[str, Mapping[str, int | str]] = MappingProxyType({}),
        own: int | None = None,
        find: Callable[[int], Account] = NAME_SERVICE.find,
        groups: Callable[[Account], frozenset[str]] = NAME_SERVICE.groups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check and store the limits. Raises ValueError as `limits_in` does."""
        self._everybody = limits_in(everybody)
        self._tables = {name: limits_in(table) for name, table in tables.items()}
        self._own = os.geteuid() if own is None else own
        self._find, self._groups, self._clock = find, groups, clock
        self._known: dict[int, tuple[float, UserLimits]] = {}
        whole = (self._everybody, *self._tables.values())
        self.bound_running = any(UserLimits(**table).bound_running for table in whole)
        """Whether any user has limits on running jobs."""

    def of(self, uid: int) -> UserLimits:
        others = {} if uid in (0, self._own) else {"queue_bytes": OTHERS_QUEUE_BYTES}
        everybody = {**others, **self._everybody}
        if not self._tables:
            return UserLimits(**everybody)
        until, found = self._known.get(uid, (float("-inf"), UserLimits()))
        if self._clock() < until:
            return found
        try:
            own = {**self._of_groups(uid), **self._of_user(uid)}
        except NameLookupTimeout:  # use the last known value, and look it up again later
            return found if uid in self._known else UserLimits(**everybody)
        found = UserLimits(**{**everybody, **own})
        self._known[uid] = (self._clock() + KNOWN_SECONDS, found)
        return found

    def _of_user(self, uid: int) -> dict[str, int]:
        names = {str(uid)}
        try:
            names.add(self._find(uid).name)
        except NameLookupTimeout:
            raise
        except UnknownAccount:  # its uid alone counts
            pass
        tables = [table for name, table in self._tables.items() if name in names]
        return {name: value for table in tables for name, value in table.items()}

    def _of_groups(self, uid: int) -> dict[str, int]:
        try:
            groups = self._groups(self._find(uid))
        except NameLookupTimeout:
            raise
        except UnknownAccount:
            return {}
        found: dict[str, int] = {}
        for entry, table in self._tables.items():
            if entry.startswith("@") and entry[1:] in groups:
                for name, value in table.items():
                    found[name] = max(value, found.get(name, 0))
        return found


def why_queued_too_much(
    limits: UserLimits, *, queued: int, queue_bytes: int, new_bytes: int, new_jobs: int = 1
) -> str | None:
    """Return the reason why a user may not submit `new_jobs` jobs with `new_bytes` bytes together;
    None if the user may.

    `queued` is the number of the user's waiting jobs, and `queue_bytes` the size of all the user's
    jobs in the queue.
    """
    if limits.max_queued is not None and queued + new_jobs > limits.max_queued:
        more = "" if new_jobs == 1 else f" and submit {new_jobs} more"
        return (
            f"you have {queued} queued jobs{more}, but users.max_queued of the daemon's "
            f"configuration allows {limits.max_queued}; wait until one starts, or cancel some"
        )
    if limits.queue_bytes is not None and queue_bytes + new_bytes > limits.queue_bytes:
        these = "this one takes" if new_jobs == 1 else f"these {new_jobs} take"
        return (
            f"your jobs take {queue_bytes} bytes of the queue and {these} {new_bytes} more, but "
            f"users.queue_bytes of the daemon's configuration allows {limits.queue_bytes}; "
            "remove some finished jobs: zerotools clean"
        )
    return None
