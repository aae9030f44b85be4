"""The terms that decide when a waiting job may start. Clients and administrators set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zerotoolsd.users.account import user_name

OK, ANY = "ok", "any"
CONDITIONS = (OK, ANY)

AT_ANY_TIME = 0.0
"""The value of `begin` in an edit that removes the earliest start time of a job."""


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A state in which no job starts.

    Attributes:
        since: the time when the drain began, in seconds since the epoch.
        uid, user: the user who began it.
        why: the reason that the user gave, if any.
    """

    since: float
    uid: int
    why: str | None = None
    user: str | None = None

    @property
    def sentence(self) -> str:
        """The sentence that waiting jobs show as their reason."""
        why = f" ({self.why})" if self.why else ""
        who = user_name(self.uid)
        return f"the queue is drained by {who}{why}: no job starts until zerotools undrain"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job that must end before another job starts.

    If `condition` is OK, it must succeed; if it is ANY, its result does not matter.
    """

    job_id: int
    condition: str = OK


@dataclass(frozen=True, kw_only=True)
class QueueTerms:
    """The conditions that decide when a waiting job may start.

    Attributes:
        priority: from LEAST_PRIORITY to MOST_PRIORITY; jobs of higher priority start first. None:
            0, or the nearest value in the user's range.
        hold: the job does not start before it is released.
        begin: the job does not start before this time.
        after: the job does not start before these jobs have ended.
    """

    priority: int | None = None
    hold: bool = False
    begin: float | None = None
    after: tuple[Dependency, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobEdit:
    """Changes to a job that has not started.

    Attributes:
        set: dotted keys of its job file with new values.
        unset: dotted keys that get their default values again.
        after: the jobs that must end before it starts; None: unchanged.
        begin: its earliest start time; None: unchanged, AT_ANY_TIME: no start time.
    """

    set: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    after: tuple[Dependency, ...] | None = None
    begin: float | None = None

    @property
    def words(self) -> list[str]:
        """The names of the changed keys. Values are left out, because they may be secrets."""
        terms = {"after": self.after, "begin": self.begin}
        named = [name for name, value in terms.items() if value is not None]
        return [*self.set, *self.unset, *named]


PLAIN_TERMS = QueueTerms()
"""The queue terms of a job that is submitted without any options."""
