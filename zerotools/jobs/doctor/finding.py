"""The result of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
LEVELS = (OK, WARNING, PROBLEM)


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """The subject of the check (`what`), its result (`found`), and the remedy (`do`; empty if it is
    ok).

    A problem stops jobs, or loses their work; a warning slows them, or protects them less.
    """

    what: str
    level: str
    found: str
    do: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields, under their names."""
        return asdict(self)


def ok(what: str, found: str) -> DoctorFinding:
    """Return a finding that needs no action."""
    return DoctorFinding(what=what, level=OK, found=found)


def warning(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding with which jobs run."""
    return DoctorFinding(what=what, level=WARNING, found=found, do=do)


def problem(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding with which jobs do not run, or not for long."""
    return DoctorFinding(what=what, level=PROBLEM, found=found, do=do)
