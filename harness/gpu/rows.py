"""Runs the checks one after another within a budget of seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.gpu.checks import Check, Found
from harness.gpu.looks import CHECKS
from harness.gpu.table import LOG, Row, error_of, lines_of
from harness.launching import ROOT
from harness.started import Started

LEAST_SECONDS = 5.0
"""A check is not begun where less is left of the budget."""
STATES = {None: "skip", True: "ok", False: "FAIL"}


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
                yield _row_of(name, check, device, left, out / LOG)


def _row_of(name: str, check: Check, device: str, left: float, log: Path) -> Row:
    """Run a check; whatever keeps it from running is a row, too."""
    began = time.monotonic()
    try:
        return _run(name, check, device, left, log)
    except Exception as error:
        took = time.monotonic() - began
        return Row(name, check.expected, f"{type(error).__name__}: {error}", "FAIL", took)


def _run(name: str, check: Check, device: str, left: float, log: Path) -> Row:
    began, place = time.monotonic(), log.stat().st_size
    seconds = min(left, check.seconds)
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
    lines = lines_of(log, place)
    if status is None and left < check.seconds:
        why = f"the budget was used up after {seconds:.0f} s of its {check.seconds:.0f}"
        return Row(name, check.expected, why, "skip", took)
    if status is None:
        return Row(name, check.expected, f"no end after {seconds:.0f} s", "FAIL", took)
    if status:
        return Row(name, check.expected, error_of(lines) or f"status {status}", "FAIL", took)
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
