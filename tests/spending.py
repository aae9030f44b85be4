"""What tests cost, in seconds of processor time: theirs and that of all processes they waited for.

Wall time says more about the neighbours on a machine than about a test. The end of a run names the
dearest files. A single test may take `BUDGET` seconds, with the fixtures that are made for it;
`@pytest.mark.dear(40, "why")` allows one more. `ZEROTOOLS_TEST_BUDGET=1`, as in CI, makes a run
fail in which one took `SLOWEST` times what it may: processors differ, and share their caches.
`ZEROTOOLS_TEST_BILL=NAME` keeps what each test cost in NAME-PID.json.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from pathlib import Path

import pytest

from harness.forked import forked_cpu_seconds, waiting_servers

BUDGET = 15.0
SLOWEST = 6.0
"""How much slower than the machine of the budgets another may be: beyond that a run fails. A third
of it is for the machine, the rest for what a test costs more where others share its caches."""
FILES = 10
MARK = "dear"
ENFORCED = "ZEROTOOLS_TEST_BUDGET"
KEPT = "ZEROTOOLS_TEST_BILL"
SPENT = pytest.StashKey[float]()
TICKS = os.sysconf("SC_CLK_TCK")


def spent() -> float:
    """Seconds of processor time so far, of this process and of all that it waited for."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    mine = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return mine + forked_cpu_seconds[0] + sum(map(_so_far, waiting_servers))


def _so_far(pid: int) -> float:
    """What a process and what it waited for have spent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


class Meter:
    """In the process that runs the tests: notes in each report what its phase took."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        item.stash[SPENT] = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> pytest.TestReport:
        report: pytest.TestReport = yield
        now = spent()
        report.cpu_seconds = now - item.stash[SPENT]
        mark = item.get_closest_marker(MARK)
        report.cpu_budget = mark.args[0] if mark else BUDGET
        item.stash[SPENT] = now
        return report


class Bill:
    """In the process that reports: sums up, and says who spent too much."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._budgets: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = getattr(report, "cpu_seconds", 0.0)
        self._files[report.nodeid.partition("::")[0]] += cost
        self._tests[report.nodeid] += cost
        self._budgets[report.nodeid] = getattr(report, "cpu_budget", BUDGET)

    def _excessive(self, factor: float = 1.0) -> list[str]:
        return [
            f"{name} took {cost:.0f} s of processor time and may take {self._budgets[name]:g} s"
            for name, cost in self._tests.items()
            if cost > factor * self._budgets[name]
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.environ.get(ENFORCED) and self._excessive(SLOWEST) and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self._files.values())
        dearest = "; ".join(f"{name} {cost:.0f}" for name, cost in self._files.most_common(FILES))
        terminalreporter.write_line(f"processor seconds of tests: {total:.0f}; most: {dearest}")
        for line in self._excessive():
            terminalreporter.write_line(line, red=True)
        if kept := os.environ.get(KEPT):
            costs = {name: round(cost, 2) for name, cost in self._tests.most_common()}
            Path(f"{kept}-{os.getpid()}.json").write_text(json.dumps(costs, indent=1))
