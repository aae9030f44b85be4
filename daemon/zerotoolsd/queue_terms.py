"""How jobs are to wait: what clients may say of it, and administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zerotoolsd.accounts.name_service import user_name

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
        """What a job that waits is told."""
        why = f" ({self.why})" if self.why else ""
        who = user_name(self.uid)
        return f"the queue is drained by {who}{why}: nothing starts until it is undrained"

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job that is to be over before another starts: `condition` is OK, it has to succeed, or ANY,
    it may end as it will."""

    job_id: int
    condition: str = OK


@dataclass(frozen=True, kw_only=True)
class QueueTerms:
    """How a job is to wait.

    `priority`: LEAST_PRIORITY to MOST_PRIORITY, the higher one goes first; None: 0, or what is
    nearest to it of what its user may have. With `hold` it does not start before it is released,
    with `begin` not before that time, and with `after` not before those jobs are over.
    """

    priority: int | None = None
    hold: bool = False
    begin: float | None = None
    after: tuple[Dependency, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobEdit:
    """What is to change of a job that has not started: dotted keys of its job file, with their
    values or to be left to their defaults, the jobs that it starts after, and the time before which
    it does not start (None: as they are; AT_ANY_TIME: there is no such time any more).
    """

    set: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    after: tuple[Dependency, ...] | None = None
    begin: float | None = None

    @property
    def words(self) -> list[str]:
        """What was changed, without values, which may be secrets."""
        terms = {"after": self.after, "begin": self.begin}
        named = [name for name, value in terms.items() if value is not None]
        return [*self.set, *self.unset, *named]


PLAIN_TERMS = QueueTerms()
"""Those of a job of which nothing was said."""
