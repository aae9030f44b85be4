"""Inject faults one after another, and undo each fault after some time.

The kinds of faults have a random order. Every kind occurs once before any kind is repeated, so even
a short test injects most kinds. The same seed gives the same kinds in the same order. The processes
and jobs that a fault affects depend on the machine.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from zerotools.core.errors import DaemonError
from zerotools.jobs import states
from zerotools.jobs.chaos.own_processes import LiveAttempt, live_attempts, signal_own
from zerotools.jobs.chaos.private_daemon import PrivateDaemon
from zerotools.jobs.chaos.toy_queue import ToyJob, ToyQueue

STOPPED_SECONDS = (0.5, 3.0)
RESTART_SECONDS = (0.2, 1.0)
PATIENCE_SECONDS = 3.0
"""The time limit in seconds for the search for a fault's target.

If no target is found, the fault is skipped.
"""
TRY_SECONDS = 0.2
RANK, SUPERVISOR, KEEPER = "rank", "supervisor", "keeper"


class Fault(NamedTuple):
    """A fault that was injected. `what` describes the process or job that it affects."""

    seconds: float
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {self.kind}: {self.what}"


class _Undo(NamedTuple):
    at: float
    act: Callable[[], object]


class KindBag:
    """Selects the kinds of faults in random order, and random pauses between the faults.

    Every kind is selected once before any kind is repeated.
    """

    def __init__(self, kinds: Iterable[str], seed: int, every: float) -> None:
        self._kinds = list(kinds)
        self._random = random.Random(f"kinds {seed}")
        self._every = every
        self._bag: list[str] = []

    def first_wait(self) -> float:
        """Return the seconds before the first fault, at most the average pause between faults."""
        return self._random.uniform(0, self._every)

    def draw(self) -> tuple[str, float]:
        """Return the kind of the next fault, and the pause after this fault in seconds."""
        if not self._bag:
            self._bag = self._random.sample(self._kinds, len(self._kinds))
        return self._bag.pop(), self._random.expovariate(1 / self._every)


class FaultMaker:
    """Injects faults at random times, on average every `every` seconds."""

    def __init__(self, daemon: PrivateDaemon, queue: ToyQueue, seed: int, every: float) -> None:
        self.made: list[Fault] = []
        self._daemon = daemon
        self._queue = queue
        self._place: Path = daemon.place
        self._random = random.Random(f"faults {seed}")
        self._began = time.monotonic()
        self._undo: list[_Undo] = []
        self._kinds: dict[str, Callable[[], str | None]] = {
            "SIGKILL of a rank": lambda: self._kill(RANK),
            "SIGKILL of a supervisor": lambda: self._kill(SUPERVISOR),
            "SIGKILL of a keeper": lambda: self._kill(KEEPER),
            "SIGKILL of a supervisor and its keeper": lambda: self._kill(SUPERVISOR, KEEPER),
            "SIGKILL of the daemon": self._kill_daemon,
            "SIGKILL of the daemon and a supervisor": self._kill_both,
            "SIGSTOP of a rank": lambda: self._stop(RANK),
            "SIGSTOP of a supervisor": lambda: self._stop(SUPERVISOR),
            "SIGSTOP of the daemon": self._stop_daemon,
            "hold of a job": self._hold,
            "cancel of a job": self._cancel,
        }
        self._bag = KindBag(self._kinds, seed, every)
        self._next_at = self._began + self._bag.first_wait()
        self._kind, self._wait = self._bag.draw()
        self._tried_since: float | None = None

    def make(self) -> Fault | None:
        """Inject the next fault and return it. Return None before the time of the next fault, or if
        no process or job can be affected now."""
        now = time.monotonic()
        self._undo_until(now)
        if now < self._next_at:
            return None
        kind, what = self._kind, self._kinds[self._kind]()
        self._tried_since = self._tried_since or now
        if what is None and now - self._tried_since < PATIENCE_SECONDS:
            self._next_at = now + TRY_SECONDS
            return None
        self._next_at = now + self._wait
        self._kind, self._wait = self._bag.draw()
        self._tried_since = None
        if what is None:
            return None
        fault = Fault(now - self._began, kind, what)
        self.made.append(fault)
        return fault

    def stop(self) -> None:
        """Undo all faults that are still in effect, so that stopped processes continue."""
        self._undo_until(float("inf"))

    def _undo_until(self, now: float) -> None:
        due = [undo for undo in self._undo if undo.at <= now]
        self._undo = [undo for undo in self._undo if undo.at > now]
        for undo in due:
            undo.act()

    def _later(self, act: Callable[[], object]) -> float:
        """Schedule a call of `act`, which undoes a fault, after a random time. Return this time in
        seconds."""
        seconds = self._random.uniform(*STOPPED_SECONDS)
        self._undo.append(_Undo(time.monotonic() + seconds, act))
        return seconds

    def _attempt(self) -> LiveAttempt | None:
        found = list(live_attempts(self._daemon.state, self._place))
        return self._random.choice(found) if found else None

    def _send(self, pid: int, number: signal.Signals) -> bool:
        return signal_own(pid, number, self._place)

    def _kill(self, *roles: str) -> str | None:
        attempt = self._attempt()
        if attempt is None:
            return None
        pids = [attempt.pid_of(role) for role in roles]
        for pid in pids if len(pids) > 1 else []:  # stopped first, so that they die together
            self._send(pid, signal.SIGSTOP)
        hit = [pid for pid in pids if self._send(pid, signal.SIGKILL)]
        return _described(attempt, hit) if hit else None

    def _kill_daemon(self) -> str | None:
        seconds = self._random.uniform(*RESTART_SECONDS)
        return f"it is started again in {seconds:.1f} s" if self._daemon.kill(seconds) else None

    def _kill_both(self) -> str | None:
        attempt = self._attempt()
        if attempt is None or not self._daemon.kill(self._random.uniform(*RESTART_SECONDS)):
            return None
        hit = self._send(attempt.supervisor, signal.SIGKILL)
        return _described(attempt, [attempt.supervisor] if hit else [])

    def _stop(self, role: str) -> str | None:
        attempt = self._attempt()
        if attempt is None or not self._send(attempt.pid_of(role), signal.SIGSTOP):
            return None
        pid = attempt.pid_of(role)
        seconds = self._later(lambda: self._send(pid, signal.SIGCONT))
        return f"{_described(attempt, [pid])}, for {seconds:.1f} s"

    def _stop_daemon(self) -> str | None:
        daemon = self._daemon
        if daemon.is_stopped or not daemon.send(signal.SIGSTOP):
            return None
        daemon.is_stopped = True
        return f"for {self._later(self._continue_daemon):.1f} s"

    def _continue_daemon(self) -> None:
        self._daemon.send(signal.SIGCONT)  # a new daemon may get it; harmless
        self._daemon.is_stopped = False

    def _running(self) -> ToyJob | None:
        """Return a random running job; None if no job runs or the daemon does not answer."""
        if self._daemon.is_stopped or not self._daemon.is_running():
            return None
        found = [job for job in self._queue.live() if job.state == states.RUNNING]
        return self._random.choice(found) if found else None

    def _hold(self) -> str | None:
        return self._act_on_running(self._queue.hold)

    def _cancel(self) -> str | None:
        return self._act_on_running(self._queue.cancel)

    def _act_on_running(self, act: Callable[[ToyJob], None]) -> str | None:
        job = self._running()
        if job is None:
            return None
        try:
            act(job)
        except DaemonError:
            return None  # the daemon was killed, or the job was about to end
        return f"job {job.number}"


def _described(attempt: LiveAttempt, pids: list[int]) -> str:
    return f"job {attempt.job}, pid {', '.join(map(str, pids)) or 'gone'}"
