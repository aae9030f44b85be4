"""Runs the checks in their order, within a budget of seconds.

Consecutive checks that may share the device run at the same time, all others one after another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from harness.gpu.checks import CORES, Check, Found
from harness.gpu.looks import CHECKS
from harness.gpu.table import LOG, Row, error_of, lines_of
from harness.launching import ROOT
from harness.started import Started

LEAST_SECONDS = 5.0
"""If fewer seconds of the budget are left, no further check begins."""
STATES = {None: "skip", True: "ok", False: "FAIL"}
CORES_PER_LANE = 4
SLOWER = 2
"""A check that shares the device with others may take this many times as long."""


def in_order(checks: Mapping[str, Check]) -> dict[str, Check]:
    """Return the checks in a new order: checks that may share the device come first."""
    return dict(sorted(checks.items(), key=lambda item: not item[1].shared))


def run_all(
    device: str, budget: float, out: Path, checks: Mapping[str, Check] = CHECKS
) -> Iterator[Row]:
    """Run the checks, and yield a row for each check when it has ended.

    The directory `out` gets the log with the output of all checks.
    """
    out.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    end = time.monotonic() + budget
    for _, group in groupby(checks.items(), key=lambda item: item[1].shared):
        found = list(group)
        runner = _Runner(device, out, end, *lanes_of([check for _, check in found], cores))
        with ThreadPoolExecutor(runner.lanes) as pool:
            rows = [pool.submit(runner.row_of, name, check) for name, check in found]
            # One that hangs keeps no other from the table.
            yield from (row.result() for row in as_completed(rows))


def lanes_of(checks: Sequence[Check], cores: int) -> tuple[int, int]:
    """Return (how many of `checks` run at a time, the number of CPU cores for each)."""
    lanes = min(len(checks), cores // CORES_PER_LANE) if checks[0].shared else 1
    return max(1, lanes), cores // max(1, lanes)


@dataclass
class _Runner:
    """Runs checks on `device` until the time `end`: `lanes` checks at a time, each with `cores`
    cores.
    """

    device: str
    out: Path
    end: float
    lanes: int
    cores: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def row_of(self, name: str, check: Check) -> Row:
        """Run a check, and return its row. If the check cannot be run, the row has the reason."""
        if self.device == "cpu" and check.not_on_cpu is not None:
            return Row(name, check.expected, check.not_on_cpu, "skip", 0.0)
        if self.end - time.monotonic() < LEAST_SECONDS:
            return Row(name, check.expected, "the budget is used up", "late", 0.0)
        began = time.monotonic()
        log = self.out / f"{name.replace(' ', '-')}.running"  # stays where a check ends the machine
        log.write_text(f"\n== {name}\n", "utf-8")
        try:
            return self._run(name, check, log)
        except Exception as error:
            took = time.monotonic() - began
            return Row(name, check.expected, f"{type(error).__name__}: {error}", "FAIL", took)
        finally:
            with self._lock, (self.out / LOG).open("ab") as whole:
                whole.write(log.read_bytes())
            log.unlink()

    def _run(self, name: str, check: Check, log: Path) -> Row:
        began, place = time.monotonic(), log.stat().st_size
        usual = check.seconds * (SLOWER if self.lanes > 1 else 1)
        left = self.end - began
        seconds = min(left, usual)
        # Of an interpreter in which the tree is not installed, too.
        path = os.pathsep.join([str(ROOT), str(ROOT / "daemon"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), CORES: str(self.cores)}
        with tempfile.TemporaryDirectory() as directory, log.open("ab") as output:
            command = [sys.executable, "-m", "harness.gpu.looks", name, self.device, directory]
            process = Started(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
            try:
                # Its own deadlines grow with the load of the machine, and the budget does not.
                status: int | None = subprocess.Popen.wait(process, seconds)
            except subprocess.TimeoutExpired:
                status = None
            process.end()
        took = time.monotonic() - began
        lines = lines_of(log, place)
        if status is None and left < usual:
            why = f"the budget was used up after {seconds:.0f} s of its {usual:.0f}"
            return Row(name, check.expected, why, "late", took)
        if status is None:
            return Row(name, check.expected, f"no end after {seconds:.0f} s", "FAIL", took)
        if status:
            return Row(name, check.expected, error_of(lines) or f"status {status}", "FAIL", took)
        found = answer_of(lines)
        return Row(name, check.expected, found.words, STATES[found.ok], took, found.memory)


def answer_of(lines: Sequence[str]) -> Found:
    """Return the result of a check from the lines that it has printed."""
    try:
        answer = json.loads(lines[-1])
        state: bool | None = answer["ok"]
        return Found(str(answer["found"]), state, [str(each) for each in answer["memory"]])
    except (ValueError, LookupError, TypeError):
        return Found(f"no answer in its last line: {''.join(lines[-1:])}", False)
