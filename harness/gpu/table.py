"""The table of results: a row for each check, and the files in which the rows are written.

This module needs only the standard library, so that it can install packages before a check is
imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

STATES = ("ok", "FAIL", "skip", "late")
AGAIN = ("FAIL", "late")
"""If a check has one of these states, the run has not passed."""
LOG, TABLE, LINES, MEMORY = "log.txt", "table.txt", "rows.jsonl", "memory.txt"


@dataclass(frozen=True)
class Row:
    """The result of one check.

    `state` is one of `STATES`. It is "late" if the budget was used up before the check ended.
    """

    name: str
    expected: str
    found: str
    state: str
    seconds: float
    memory: Sequence[str] = ()

    def __str__(self) -> str:
        fields = (self.name, self.expected, self.found, self.state, f"{self.seconds:.1f}")
        return " | ".join(fields)


def installed(wheels: Path, out: Path) -> Row:
    """Install the wheels in the directory `wheels` for this interpreter, without a package index.

    Packages that the wheels need may be missing. Then the checks that need such packages report
    this.
    """
    began, name, expected = time.monotonic(), "wheels", "installed from the folder alone"
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(wheels.glob("*.whl"))
    if not files:
        return Row(name, expected, f"{wheels} has none", "FAIL", 0.0)
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    place = (out / LOG).stat().st_size if (out / LOG).exists() else 0
    with (out / LOG).open("ab") as log:
        done = subprocess.run([*command, *files], stdout=log, stderr=log, check=False)
    took = time.monotonic() - began
    if done.returncode:
        return Row(
            name, expected, error_of(lines_of(out / LOG, place)) or "pip fails", "FAIL", took
        )
    return Row(name, expected, f"{len(files)} wheels", "ok", took)


def lines_of(log: Path, place: int) -> list[str]:
    """Return the lines of the file `log`, from byte `place` on."""
    return log.read_bytes()[place:].decode("utf-8", "replace").splitlines()


def error_of(lines: Sequence[str]) -> str | None:
    """Return the error message after a traceback in `lines`; without a traceback, the last line.

    Returns None if all lines are empty.
    """
    begun = False
    for line in lines:
        begun = begun or line.startswith("Traceback")
        if begun and line and not line.startswith((" ", "Traceback")):
            return line
    return next((line for line in reversed(lines) if line), None)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the lines at the end of the table: the failed and late checks, and the number of rows
    in each state.
    """
    again = [f"{row.state} {row.name}: {row.found}" for row in rows if row.state in AGAIN]
    ok, failed, skipped, late = (sum(row.state == state for row in rows) for state in STATES)
    said = next((row.found for row in rows if row.name == "versions"), "")
    counts = f"ran {ok + failed}, failed {failed}, late {late}, skipped {skipped}"
    return [*again, f"{counts}, {said}"]


def write(rows: Sequence[Row], out: Path) -> None:
    """Write three files to the directory `out`: the table, the rows as JSON lines, and the memory
    measurements.
    """
    (out / TABLE).write_text("\n".join([*map(str, rows), *summary(rows)]) + "\n", "utf-8")
    (out / LINES).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), "utf-8")
    memory = [f"{row.name}: {line}\n" for row in rows for line in row.memory]
    (out / MEMORY).write_text("".join(memory), "utf-8")
