"""What every test run has: a count of tests per mark, and marks that must not be skipped.

`ZEROTOOLS_REQUIRED_MARKS=torch,deepspeed` turns a run in which one of those was skipped, or had no
test at all, into a failure. `ZEROTOOLS_TORCH_FREE=1` says that this environment has no torch.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest
from hypothesis import settings
from psutil import virtual_memory

from harness.browser import why_no_browser
from harness.left_groups import remove_groups
from tests.harness import builds
from tests.harness.guard import Guard
from tests.matrices import FULL, examples
from tests.side_by_side import SideBySide, processes
from tests.spending import Bill, Meter
from zerotools.jobs.preflight import async_io

MARKS = ("torch", "deepspeed", "aio", "peft", "slurm", "gpu", "browser", "trackers", "evals")
ALONE = ("gpu", "aio", "browser", "trackers", "evals")
"""A machine without these has torch and DeepSpeed all the same."""
MATRIX = "full"
NOTED = "marks"
"""What a test's marks are called in its report, which is all that comes from another process."""

MEMORY = Path("/dev/shm")
ROOM = 6 * 2**30

# Tests flush files thousands of times, and no test asks what a disk keeps without power: if a file
# system in memory can run programs and has room, the directories of tests are there. pytest's own
# variable names another place.
if (
    MEMORY.is_dir()
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and min(shutil.disk_usage(MEMORY).free, virtual_memory().available) > ROOM
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# What DeepSpeed compiles is kept with the environment of the tests, not with their user.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(builds.DIRECTORY))

HELD = pytest.StashKey[IO[bytes]]()
"""The lock on DeepSpeed's operators."""

settings.register_profile(
    "steady", deadline=None, derandomize=True, print_blob=True, max_examples=examples(100)
)
settings.load_profile("steady")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is of the full matrices alone; skip what needs a library that is not
    installed, and say which; note marks for the count. Files that start DeepSpeed or torch go
    first: they take longest."""
    dear: dict[Path, int] = {}
    marked = {item: {mark.name for mark in item.iter_markers()} for item in items}
    if not FULL:
        left_out = [item for item, names in marked.items() if MATRIX in names]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if MATRIX not in marked[item]]
        marked = {item: marked[item] for item in items}
    for item, names in marked.items():
        dear[item.path] = max(len({"torch", "deepspeed"} & names), dear.get(item.path, 0))
    items.sort(key=lambda item: -dear[item.path])
    for item in items:
        marks = [mark for mark in MARKS if mark in marked[item]]
        alone = [mark for mark in marks if mark in ALONE]
        item.user_properties.append((NOTED, alone or marks))
    needed = {mark: (mark,) for mark in ("torch", "deepspeed", "peft")}
    for mark, packages in {
        **needed,
        "trackers": ("wandb", "mlflow"),
        "evals": ("lm_eval",),
    }.items():
        if any(find_spec(package) is None for package in packages):
            absent = pytest.mark.skip(reason=f"{' or '.join(packages)} is not installed")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(absent)


def _gpus() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


@cache
def _without_async_io() -> str | None:
    if (why := async_io.why_no_async_io()) is not None:
        return f"DeepSpeed's async_io cannot be compiled here: {why}"
    directory = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    if (directory / "async_io" / "async_io.so").exists():
        return None
    return f"DeepSpeed's async_io is not in {directory}; scripts/async_io compiles it, in minutes"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and (why := why_no_browser()):
        pytest.skip(why)
    if item.get_closest_marker("gpu") and not _gpus():
        pytest.skip("this machine has no GPU")
    if item.get_closest_marker("aio") and (why := _without_async_io()):
        pytest.skip(why)


def pytest_configure(config: pytest.Config) -> None:
    # A shell has what it starts in the background ignore Ctrl-C, and all that this starts, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("ZEROTOOLS_TORCH_FREE") and find_spec("torch"):
        raise pytest.UsageError("this environment must not have torch, and has it")
    config.pluginmanager.register(MarkCount(), "mark-count")
    config.pluginmanager.register(Bill(), "bill")
    config.stash[HELD] = builds.hold()
    named = any("::" in each for each in config.args)
    if processes() > 1 and not named and not config.option.collectonly:
        config.pluginmanager.register(SideBySide(processes()), "side-by-side")
    gc.disable()  # until all is collected: a sixth of what that takes
    config.pluginmanager.register(Guard(), "guard")
    config.pluginmanager.register(Meter(), "meter")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: tests that look for garbage need not look through it."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    if HELD in config.stash:
        config.stash[HELD].close()


@pytest.fixture(scope="session", autouse=True)
def no_group_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No control group outlives the tests whose attempts made it."""
    yield
    remove_groups(tmp_path_factory.getbasetemp())


class MarkCount:
    """Counts tests run and skipped per mark, and prints the counts at the end."""

    def __init__(self) -> None:
        self._run: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        names = os.environ.get("ZEROTOOLS_REQUIRED_MARKS", "")
        self._required = [name for name in names.split(",") if name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        finished = report.when == "call" or (report.when == "setup" and report.skipped)
        if not finished:
            return
        counter = self._skipped if report.skipped else self._run
        for mark in dict(report.user_properties).get(NOTED) or ["unmarked"]:
            counter[mark] += 1

    def _unmet(self) -> list[str]:
        return [
            f"{mark}: {self._run[mark]} run, {self._skipped[mark]} skipped"
            for mark in self._required
            if self._skipped[mark] or not self._run[mark]
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unmet() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        marks = ("unmarked", *MARKS)
        counts = (f"{m} {self._run[m]} run, {self._skipped[m]} skipped" for m in marks)
        terminalreporter.write_line("tests per mark: " + "; ".join(counts))
        for line in self._unmet():
            terminalreporter.write_line(f"required, but not all were run: {line}", red=True)
