"""The terms of waiting jobs, set by clients and administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zerotoolsd.users.account import user_name

OK, ANY = "ok", "any"
CONDITIONS = (OK, ANY)

AT_ANY_TIME = 0.0
"""The `begin` of an edit that takes the time from a job."""


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Nothing starts: `since` when, and the words of who wanted it, if there were any."""

    since: float
    uid: int
    why: str | None = None
    user: str | None = None

    @property
    def sentence(self) -> str:
        """The sentence for waiting jobs."""
        why = f" ({self.why})" if self.why else ""
        who = user_name(self.uid)
        return f"the queue is drained by {who}{why}: nothing starts until it is undrained"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, by name, as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job that must end before another starts: with `condition` OK it must succeed, with ANY its
    result does not count."""

    job_id: int
    condition: str = OK


@dataclass(frozen=True, kw_only=True)
class QueueTerms:
    """The terms of a job in the queue.

    `priority`: LEAST_PRIORITY to MOST_PRIORITY, the higher one goes first; None: 0, or the nearest
    value in its user's range. With `hold` it does not start before its release, with `begin` not
    before that time, and with `after` not before those jobs have ended.
    """

    priority: int | None = None
    hold: bool = False
    begin: float | None = None
    after: tuple[Dependency, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobEdit:
    """The changes of an unstarted job: dotted keys of its job file, with their values or reset to
    their defaults, the jobs that it starts after, and the time before which it does not start
    (None: unchanged; AT_ANY_TIME: no such time)."""

    set: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    after: tuple[Dependency, ...] | None = None
    begin: float | None = None

    @property
    def words(self) -> list[str]:
        """The changed keys, without values, which may be secrets."""
        terms = {"after": self.after, "begin": self.begin}
        named = [name for name, value in terms.items() if value is not None]
        return [*self.set, *self.unset, *named]


PLAIN_TERMS = QueueTerms()
"""The terms of a job without any options."""
