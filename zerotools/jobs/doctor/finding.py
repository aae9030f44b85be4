"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
LEVELS = (OK, WARNING, PROBLEM)


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """`what` was looked at, what was `found` there, and what to `do` (nothing, if it is ok).

    A problem stops jobs, or loses what they did; a warning slows them, or protects them less.
    """

    what: str
    level: str
    found: str
    do: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        return asdict(self)


def ok(what: str, found: str) -> DoctorFinding:
    """Nothing to do."""
    return DoctorFinding(what=what, level=OK, found=found)


def warning(what: str, found: str, do: str) -> DoctorFinding:
    """Jobs run."""
    return DoctorFinding(what=what, level=WARNING, found=found, do=do)


def problem(what: str, found: str, do: str) -> DoctorFinding:
    """Jobs do not run, or not for long."""
    return DoctorFinding(what=what, level=PROBLEM, found=found, do=do)
