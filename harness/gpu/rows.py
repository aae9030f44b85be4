"""Runs the checks one after another within a budget of seconds, and writes what came of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.gpu.checks import Check, Found
from harness.gpu.looks import CHECKS
from harness.launching import ROOT
from harness.started import Started

LEAST_SECONDS = 5.0
"""A check is not begun where less is left of the budget."""
LOG, TABLE, LINES, MEMORY = "log.txt", "table.txt", "rows.jsonl", "memory.txt"
STATES = {None: "skip", True: "ok", False: "FAIL"}


@dataclass(frozen=True)
class Row:
    """The result of one check: `state` is "ok", "FAIL" or "skip"."""

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
    """Install the wheels of a folder for this interpreter, and ask no index for anything.

    Packages that they need may be missing: the affected checks report it.
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
        return Row(name, expected, _error(_lines(out / LOG, place)) or "pip fails", "FAIL", took)
    return Row(name, expected, f"{len(files)} wheels", "ok", took)


def run_all(
    device: str, budget: float, out: Path, checks: Mapping[str, Check] = CHECKS
) -> Iterator[Row]:
    """Yield a row for each check, in order. `out` gets the output of all."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOG).open("ab") as log:
        for name, check in checks.items():
            left = budget - (time.monotonic() - began)
            if device == "cpu" and check.not_on_cpu is not None:
                yield Row(name, check.expected, check.not_on_cpu, "skip", 0.0)
            elif left < LEAST_SECONDS:
                yield Row(name, check.expected, "the budget is used up", "skip", 0.0)
            else:
                log.write(f"\n== {name}\n".encode())
                log.flush()
                yield _row_of(name, check, device, min(left, check.seconds), out / LOG)


def _row_of(name: str, check: Check, device: str, seconds: float, log: Path) -> Row:
    """Run a check; whatever keeps it from running is a row, too."""
    began = time.monotonic()
    try:
        return _run(name, check, device, seconds, log)
    except Exception as error:
        took = time.monotonic() - began
        return Row(name, check.expected, f"{type(error).__name__}: {error}", "FAIL", took)


def _run(name: str, check: Check, device: str, seconds: float, log: Path) -> Row:
    began, place = time.monotonic(), log.stat().st_size
    # Of an interpreter in which the tree is not installed, too.
    path = os.pathsep.join([str(ROOT), str(ROOT / "daemon"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    with tempfile.TemporaryDirectory() as directory, log.open("ab") as output:
        command = [sys.executable, "-m", "harness.gpu.looks", name, device, directory]
        process = Started(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            # Its own deadlines grow with the load of the machine, and the budget does not.
            status: int | None = subprocess.Popen.wait(process, seconds)
        except subprocess.TimeoutExpired:
            status = None
        process.end()
    took = time.monotonic() - began
    lines = _lines(log, place)
    if status is None:
        return Row(name, check.expected, f"no end after {seconds:.0f} s", "FAIL", took)
    if status:
        return Row(name, check.expected, _error(lines) or f"status {status}", "FAIL", took)
    found = answer_of(lines)
    return Row(name, check.expected, found.words, STATES[found.ok], took, found.memory)


def answer_of(lines: Sequence[str]) -> Found:
    """Return the findings of a check; `lines` are its output."""
    try:
        answer = json.loads(lines[-1])
        state: bool | None = answer["ok"]
        return Found(str(answer["found"]), state, [str(each) for each in answer["memory"]])
    except (ValueError, LookupError, TypeError):
        return Found(f"no answer in its last line: {''.join(lines[-1:])}", False)


def _lines(log: Path, place: int) -> list[str]:
    return log.read_bytes()[place:].decode("utf-8", "replace").splitlines()


def _error(lines: Sequence[str]) -> str | None:
    """Return the first line after a traceback, or else the last line."""
    begun = False
    for line in lines:
        begun = begun or line.startswith("Traceback")
        if begun and line and not line.startswith((" ", "Traceback")):
            return line
    return next((line for line in reversed(lines) if line), None)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the failures again, and the number of rows in each state."""
    failed = [row for row in rows if row.state == "FAIL"]
    counts = {state: sum(row.state == state for row in rows) for state in ("ok", "FAIL", "skip")}
    ran = counts["ok"] + counts["FAIL"]
    said = next((row.found for row in rows if row.name == "versions"), "")
    lines = [f"FAIL {row.name}: {row.found}" for row in failed]
    return [*lines, f"ran {ran}, failed {len(failed)}, skipped {counts['skip']}, {said}"]


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the table, the rows as JSON lines, and the memory measurements."""
    (out / TABLE).write_text("\n".join([*map(str, rows), *summary(rows)]) + "\n", "utf-8")
    (out / LINES).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), "utf-8")
    memory = [f"{row.name}: {line}\n" for row in rows for line in row.memory]
    (out / MEMORY).write_text("".join(memory), "utf-8")
