"""Test files run side by side, in processes that are forked from this one.

`ZEROTOOLS_TEST_PROCESSES=3` starts three. Each takes the next file, collects it, runs its tests in
order and takes another, so that a file is imported once and its asserts are rewritten once. What is
in `PRELOADED` is imported once for all. Reports come back to the first process, which shows and
counts them as if the tests had run there.

A process that dies fails the test that it ran and is replaced. Names of tests (`FILE::NAME`) on the
command line, and `--collect-only`, need no processes.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import pytest

from harness import forked
from harness.faults import warm
from tests.cli import command_process

PROCESSES = "ZEROTOOLS_TEST_PROCESSES"
PRELOADED = (
    "numpy",
    "aiohttp",
    "torch",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
)
"""Many files need these, if they are installed."""
LIBRARY = 100
"""A file that imports so many modules has imported a library, through which tests that look for
garbage need not look."""
FEW = 50
"""So many files prepare nothing for one another."""
FORKED = {
    Path(__file__).parent / "cli": command_process.MODULES,
    Path(__file__).parent / "daemon": warm.MODULES,
}
"""What tests of a folder have imported in the processes that they fork."""
DEAR = re.compile(r"mark\.dear\(\s*([\d.]+)")
GRACE_SECONDS = 10.0
"""How long interrupted processes have for the ends of their fixtures."""
Location = tuple[str, int | None, str]


def processes() -> int:
    """Return how many processes run tests, 1 if this one does."""
    return int(os.environ.get(PROCESSES) or 1)


def dearness(path: Path) -> tuple[float, int, int]:
    """Return a key by which files that take longer are greater: those that say so, those that start
    DeepSpeed or torch, and then the longer ones."""
    text = path.read_text("utf-8")
    said = sum(float(seconds) for seconds in DEAR.findall(text))
    return said, sum(f"mark.{name}" in text for name in ("torch", "deepspeed")), len(text)


@dataclass
class Worker:
    """One forked process, as the first process sees it."""

    pid: int
    ends: int
    """A pidfd, which is readable once the process has ended."""
    messages: Connection
    test: tuple[str, Location] | None = None
    """The test that runs now."""
    left: set[str] = field(default_factory=set)
    """Tests that were collected and have not finished."""
    has_begun: bool = False
    """It has asked for a file."""
    file: str | None = None
    """The file that it took and has not collected."""


class SideBySide:
    """Takes the place of pytest's own collection and loop."""

    def __init__(self, count: int, preloaded: Sequence[str] = PRELOADED) -> None:
        self._count = count
        self._preloaded = preloaded
        self._files: list[pytest.Module] = []
        self._waiting: deque[int] = deque()
        self._workers: list[Worker] = []
        self._selector = DefaultSelector()
        self._base = Path()
        self._collected = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files without importing them."""
        whole = session.genitems

        def files_alone(node: pytest.Item | pytest.Collector) -> Iterator[pytest.Item]:
            if isinstance(node, pytest.Module):
                self._files.append(node)
                return iter(())
            return whole(node)

        session.genitems = files_alone  # type: ignore[method-assign]
        try:
            session.perform_collect()
        finally:
            del session.genitems
        self._files.sort(key=lambda file: dearness(file.path), reverse=True)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Start the processes and pass on what they report.

        Raises:
            pytest.Session.Interrupted: a conftest could not be imported.
            pytest.Session.Failed: as many tests failed as `--maxfail` allows.
        """
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        self._share()  # which import while this process does
        gc.disable()
        for name in self._preloaded:
            if find_spec(name.partition(".")[0]) is not None:
                import_module(name)
        gc.enable()
        gc.freeze()
        self._base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._waiting.extend(range(len(self._files)))
        try:
            for _ in range(min(self._count, len(self._files))):
                self._start(session)
            while self._workers:
                self._pass_on(session)
        finally:
            self._end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def _share(self) -> None:
        """Prepare what each process would otherwise prepare alone: the servers that fork ranks,
        daemons and commands, and hypothesis's table of characters, which takes seconds in a new
        tree."""
        if len(self._files) <= FEW:
            return
        has_torch = find_spec("torch") is not None
        if has_torch and any(dearness(file.path)[1] for file in self._files):
            forked.share(forked.TORCH)
            if find_spec("deepspeed") is not None:
                forked.share(forked.DEEPSPEED)
        for folder, modules in FORKED.items():
            if any(folder in file.path.parents for file in self._files):
                forked.share(modules)
        from hypothesis import strategies  # which the tests of this file do without

        strategies.text().validate()

    def _start(self, session: pytest.Session) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            for end in (ours, *(worker.messages for worker in self._workers)):
                end.close()
            self._selector.close()
            serve(session, self._files, theirs, self._base / f"p{os.getpid()}")
        theirs.close()
        worker = Worker(pid, os.pidfd_open(pid), ours)
        self._workers.append(worker)
        for end in (worker.messages, worker.ends):
            self._selector.register(end, EVENT_READ, worker)

    def _pass_on(self, session: pytest.Session) -> None:
        """Wait for messages and ends of processes, and act on them."""
        ended = []
        for key, _ in self._selector.select():
            worker = key.data
            if key.fileobj is not worker.messages:
                ended.append(worker)
                continue
            try:
                self._receive(session, worker, *worker.messages.recv())
            except (EOFError, ConnectionError):
                self._reap(session, worker)
        for worker in ended:
            if worker in self._workers and not worker.messages.poll():
                self._reap(session, worker)

    def _receive(self, session: pytest.Session, worker: Worker, kind: str, *what: Any) -> None:
        hook = session.config.hook
        if kind == "next":
            over = session.shouldfail or session.shouldstop or not self._waiting
            number = None if over else self._waiting.popleft()
            worker.has_begun = True
            worker.file = None if number is None else self._files[number].nodeid
            worker.messages.send(number)
        elif kind == "collected":
            worker.file = None
            worker.left |= set(what[0])
            self._count_tests(session, len(what[0]))
        elif kind == "collectreport":
            hook.pytest_collectreport(report=_report_of(session, what[0]))
        elif kind == "start":
            worker.test = what[0], what[1]
            hook.pytest_runtest_logstart(nodeid=what[0], location=what[1])
        else:
            worker.test = None
            worker.left.discard(what[0])
            for data in what[2]:
                hook.pytest_runtest_logreport(report=_report_of(session, data))
            hook.pytest_runtest_logfinish(nodeid=what[0], location=what[1])

    def _count_tests(self, session: pytest.Session, more: int) -> None:
        """Count `more` tests, and expect as many of each further file as of those so far: the
        percentage of the progress is of that number."""
        self._collected += more
        files = len(self._files)
        session.testscollected = self._collected * files // max(1, files - len(self._waiting))

    def _reap(self, session: pytest.Session, worker: Worker) -> None:
        """Note the end of a process; if it has died, its test fails and another takes its place."""
        self._workers.remove(worker)
        for end in (worker.messages, worker.ends):
            self._selector.unregister(end)
        worker.messages.close()
        os.close(worker.ends)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if status == 0 and not worker.left and worker.file is None:
            return
        name = worker.file or min(worker.left, default="tests")
        name, location = worker.test or (name, (name, None, ""))
        others = sorted(worker.left - {name})
        said = f"the process that ran this test ended with status {status}"
        if others:
            said += f"; it had collected {len(others)} more, which did not run, as {others[0]}"
        report = pytest.TestReport(name, location, {}, "failed", said, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        # One that could not even begin would be replaced without end.
        if worker.has_begun and not session.shouldfail and self._waiting:
            self._start(session)

    def _end(self) -> None:
        """Interrupt the processes that still run, and kill those that do not end."""
        for number in (None, signal.SIGINT, signal.SIGKILL):
            for worker in self._workers:
                if number is not None:
                    signal.pidfd_send_signal(worker.ends, number)
            until = time.monotonic() + GRACE_SECONDS
            while self._workers and (left := until - time.monotonic()) > 0:
                for ends in wait([worker.ends for worker in self._workers], left):
                    worker = next(one for one in self._workers if one.ends == ends)
                    self._workers.remove(worker)
                    os.waitpid(worker.pid, 0)


def _report_of(session: pytest.Session, data: dict[str, Any]) -> Any:
    config = session.config
    return config.hook.pytest_report_from_serializable(config=config, data=data)


class Messenger:
    """In a forked process: sends what is reported to the first process."""

    def __init__(self, config: pytest.Config, messages: Connection) -> None:
        self._config = config
        self._messages = messages
        self._reports: list[pytest.TestReport] = []

    def _data(self, report: pytest.TestReport | pytest.CollectReport) -> dict[str, Any]:
        hook = self._config.hook
        data: dict[str, Any] = hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        return data

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._messages.send(("collectreport", self._data(report)))

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._reports = []
        self._messages.send(("start", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        reports = _shortened(self._reports)
        self._messages.send(("finish", nodeid, location, [self._data(each) for each in reports]))


def _shortened(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """Of a test that passed, one report: three take half as long as a short test."""
    called = [each for each in reports if each.when == "call"]
    if not called or not all(each.passed for each in reports):
        return reports
    called[0].keywords = {}
    called[0].cpu_seconds = sum(getattr(each, "cpu_seconds", 0.0) for each in reports)
    return called[:1]


def serve(
    session: pytest.Session, files: Sequence[pytest.Module], messages: Connection, place: Path
) -> None:
    """Run the tests of the files whose numbers come, and end this process."""
    status = 1
    try:
        _settle(session.config, place)
        session.config.pluginmanager.register(Messenger(session.config, messages))
        _run(session, files, messages)
        status = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # the first process has ended, or all are interrupted
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            session._setupstate.teardown_exact(None)
            forked.close_servers()
            atexit._run_exitfuncs()
        finally:
            os._exit(status)


def _settle(config: pytest.Config, place: Path) -> None:
    """Give this process a directory and a capture of its own; what pytest prints goes nowhere."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    place.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = place  # type: ignore[attr-defined]


def _run(session: pytest.Session, files: Sequence[pytest.Module], messages: Connection) -> None:
    """Take files while there are more. The next one is collected before the last test of a file
    runs, so that fixtures of the session stay."""
    queue: deque[pytest.Item] = deque()
    more = True
    while True:
        while more and len(queue) < 2:
            messages.send(("next",))
            number = messages.recv()
            if more := number is not None:
                items = _collect(session, files[number])
                messages.send(("collected", [item.nodeid for item in items]))
                queue.extend(items)
        if not queue:
            return
        item = queue.popleft()
        following = queue[0] if queue else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _collect(session: pytest.Session, file: pytest.Module) -> list[pytest.Item]:
    before = len(sys.modules)
    gc.disable()
    session.items = list(session.genitems(file))
    hook = session.config.hook
    hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
    gc.enable()
    if len(sys.modules) > before + LIBRARY:
        gc.freeze()
    return session.items
