"""Run a fault-injection test: make its directory, run jobs and faults, and return its report.

One thread keeps the daemon and the jobs running, and injects the faults. Even if a signal ends the
test, no processes or files of the test remain.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from zerotools.core.errors import BadRequest, DaemonError
from zerotools.jobs.chaos import chaos_report
from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.chaos_report import ChaosReport, Guarantee, Tally
from zerotools.jobs.chaos.inject_faults import FaultMaker
from zerotools.jobs.chaos.own_processes import CleanupProcess, end_all
from zerotools.jobs.chaos.private_daemon import PrivateDaemon
from zerotools.jobs.chaos.toy_program import RunLog
from zerotools.jobs.chaos.toy_queue import ToyQueue

PREFIX = "zerotools-drill-"
PAUSE = 0.05
LOOK_SECONDS = 0.25

Say = Callable[[str], None]


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def run_chaos(request: ChaosOptions, log_line: Say = lambda line: None) -> ChaosReport:
    """Run a fault-injection test, and return its report.

    `log_line` is called with each progress message, which is a single line.

    Raises:
        DaemonUnreachable: no daemon can be started on this machine.
        BadRequest: the test's directory cannot be made.
    """
    try:
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=request.directory)).resolve()
    except OSError as error:
        raise BadRequest(
            f"--directory {request.directory}: cannot make a directory there: {error.strerror}; "
            "name another one"
        ) from None
    report: ChaosReport | None = None
    with ending_signals():
        sweep = None
        try:
            sweep = CleanupProcess(place)
            report = _Drill(place, request, log_line).run()
        finally:
            with ignoring_signals():
                end_all(place)
                if sweep is not None:
                    sweep.end()
                if not request.keep and (report is None or report.is_upheld):
                    shutil.rmtree(place, ignore_errors=True)
    return report


class _Drill:
    def __init__(self, place: Path, request: ChaosOptions, log_line: Say) -> None:
        self._place = place
        self._request = request
        self._log_line = log_line
        self._daemon = PrivateDaemon(place, request.jobs)
        self._queue = ToyQueue(place, self._daemon.client, request)
        self._next_check = 0.0

    def run(self) -> ChaosReport:
        request, began = self._request, time.monotonic()
        self._daemon.begin()
        try:
            self._queue.fill()
            faults = FaultMaker(self._daemon, self._queue, request.seed, request.every)
            end = time.monotonic() + request.trouble_seconds
            while time.monotonic() < end:
                self._advance(self._queue.fill)
                if (fault := faults.make()) is not None:
                    self._log_line(str(fault))
            faults.stop()
            late = self._finish()
            judged = self._judge(late)
        finally:
            with ignoring_signals():
                self._daemon.end()
        if late is not None:
            end_all(self._place)  # jobs run without a daemon, as intended
        judged.append(chaos_report.of_processes(self._place))
        held = all(promise.is_upheld for promise in judged)
        attempts = [len(job.view.get("attempts", ())) for job in self._queue.jobs]
        return ChaosReport(
            seed=request.seed,
            seconds=time.monotonic() - began,
            faults=faults.made,
            states=Counter(str(job.view.get("state", "late")) for job in self._queue.jobs),
            attempts=sum(attempts),
            began=sum(count > 0 for count in attempts),
            resumed=self._queue.resumed,
            daemon_starts=self._daemon.starts,
            tally=self._tally(),
            promises=judged,
            place=None if held and not request.keep else self._place,
        )

    def _advance(self, submit: Callable[[], None]) -> None:
        """Restart the daemon if it has ended, submit jobs, and update the states of the jobs.

        Then sleep for a short time.
        """
        self._daemon.keep_up()
        if time.monotonic() >= self._next_check and not self._daemon.is_stopped:
            with suppress(DaemonError):  # it was killed: the request is repeated
                submit()
                self._queue.update()
            self._next_check = time.monotonic() + LOOK_SECONDS
        time.sleep(PAUSE)

    def _finish(self) -> str | None:
        """Wait until all jobs have ended.

        Return None, or a sentence about the jobs that did not end in time.
        """
        queue, seconds = self._queue, self._request.end_seconds
        left = sum(not job.is_over for job in queue.jobs)
        self._log_line(f"no more faults; the {left} remaining jobs must end within {seconds:.0f} s")
        deadline = time.monotonic() + seconds
        while any(not job.is_over for job in queue.jobs):
            if time.monotonic() > deadline:
                late = f"not all jobs ended within {seconds:.0f} s"
                self._log_line(f"{late}: the test kills them now")
                return f"{late}: {queue.states_of_live()}"
            self._advance(queue.submit)
        return None

    def _judge(self, late: str | None) -> list[Guarantee]:
        jobs = self._queue.jobs
        runs = {job.name: RunLog(job.lines(), job.steps) for job in jobs}
        ends = chaos_report.of_ends(jobs, runs, late)
        try:
            once = chaos_report.of_queue(jobs, list(self._queue.listed()))
        except DaemonError as error:
            once = Guarantee(chaos_report.ONCE, [f"the daemon does not answer: {error}"])
        daemon = chaos_report.of_daemon(self._daemon.unexpected_exits)
        return [once, ends, *chaos_report.of_runs(jobs, runs), daemon]

    def _tally(self) -> Tally:
        tally = Tally()
        for job in self._queue.jobs:
            if job.is_over:  # other jobs have no final state
                tally.jobs[str(job.view["state"])] += 1
                tally.add(job.lines(), job.pace)
                tally.seconds += job.seconds
        return tally


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def ending_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, as Ctrl-C raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP inside the `with` block, so that the cleanup in the
    block is completed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deaf = (signal.SIGINT, *_ENDING)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in deaf}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
