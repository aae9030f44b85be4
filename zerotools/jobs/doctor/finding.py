"""The result of one check of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
LEVELS = (OK, WARNING, PROBLEM)


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """The result of one check: its subject (`what`), the result (`found`), and the remedy (`do`).

    The remedy is empty if the user need not do anything. The level is one of three: `ok`, `warning`
    (jobs are slower or less protected), and `problem` (jobs cannot run or lose their work).
    """

    what: str
    level: str
    found: str
    do: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields of the finding, keyed by name."""
        return asdict(self)


def ok(what: str, found: str) -> DoctorFinding:
    """Return a finding that says that everything is in order."""
    return DoctorFinding(what=what, level=OK, found=found)


def warning(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding of a defect that does not stop jobs."""
    return DoctorFinding(what=what, level=WARNING, found=found, do=do)


def problem(what: str, found: str, do: str) -> DoctorFinding:
    """Return a finding of a defect that prevents jobs from running, or makes them fail soon."""
    return DoctorFinding(what=what, level=PROBLEM, found=found, do=do)
