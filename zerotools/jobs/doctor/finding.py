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
    """The subject of a check (`what`), its result (`found`), and the remedy (`do`; empty if no
    action is needed).

    A problem stops jobs or loses their work. A warning slows jobs down or protects them less.
    """

    what: str
    level: str
    found: str
    do: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields, by name."""
        return asdict(self)


def ok(what: str, found: str) -> DoctorFinding:
    """Return a finding that needs no action."""
    return DoctorFinding(what=what, level=OK, found=found)


def warning(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding with which jobs still run."""
    return DoctorFinding(what=what, level=WARNING, found=found, do=do)


def problem(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding with which jobs do not run, or soon fail."""
    return DoctorFinding(what=what, level=PROBLEM, found=found, do=do)
