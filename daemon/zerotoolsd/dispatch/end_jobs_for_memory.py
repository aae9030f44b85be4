"""Asks jobs to save and end when memory runs out, and ends them at once if saving would take
too long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.jobs import states
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.dispatch.choose_low_memory_action import MemoryAction, MemoryHolder
from zerotoolsd.queue import clocks, fault_isolation
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import YieldAsk

MAY_BE_ASKED = (states.RUNNING, *states.GIVING_WAY)

log = logging.getLogger(__name__)


@dataclass
class MemoryPreemption:
    """Asks jobs of this daemon to save and end, or ends them at once.

    `give_way` asks a job to save and stop. `end` ends the grace period of such a request.
    `purpose` is the purpose of the request, one of PURPOSES.
    """

    store: Store
    guard: Guard
    give_way: Callable[[JobRow, YieldAsk, str], None]
    end: Callable[[AttemptRow, str], None]
    purpose: str
    _asked: dict[str, float] = field(default_factory=dict)
    """The time of the request to each attempt, by token of the attempt."""
    _ended: dict[str, float] = field(default_factory=dict)

    def holders(self, live: Sequence[AttemptRow], held: Mapping[int, int]) -> list[MemoryHolder]:
        """Return the attempts among `live`, the running attempts, that may be asked to save and
        end. `held` maps the number of a job to the memory that the job uses, in bytes.
        """
        found = []
        for attempt in live:
            with self.guard(attempt.job_id, fault_isolation.COUNTING) as reach:
                reach()
                job = self.store.job(attempt.job_id)
                spec = job.reading.spec
                watches = spec is not None and spec.script.process is not None
                if watches or job.state not in MAY_BE_ASKED:
                    continue
                found.append(
                    MemoryHolder(
                        job_id=job.id,
                        priority=job.priority,
                        held=held.get(job.id, 0),
                        unsaved_seconds=unsaved_seconds(attempt, clocks.read_clocks()),
                        saves=why_not_saved(job, self.store.attempts(job.id)) is None,
                        loads=_loads(attempt),
                        asked=self._asked.get(attempt.token),
                        ended=self._ended.get(attempt.token),
                    )
                )
        return found

    def execute(self, act: MemoryAction, live: Sequence[AttemptRow], why: str, now: float) -> None:
        """Carry out the action `act` against one of the attempts `live`.

        `why` becomes the reason of the job. `now` is a monotonic time in seconds.
        """
        attempt = next(each for each in live if each.job_id == act.job_id)
        with self.guard(act.job_id, fault_isolation.STOPPING) as reach:
            reach()
            job = self.store.job(act.job_id)
            if attempt.token not in self._asked:
                self._asked[attempt.token] = now
                log.warning("job %d %s", job.id, why)
                try:
                    if job.state not in states.GIVING_WAY:  # else it saves already, for another
                        self.give_way(job, YieldAsk(purpose=self.purpose), why)
                except NotAllowed:  # it has ended meanwhile
                    log.info("job %d has ended already", job.id)
                    return
            if act.at_once:
                self._ended[attempt.token] = now
                log.warning("job %d is ended at once: %s", job.id, why)
                self.end(attempt, self.purpose)

    def forget_ended(self, live: Sequence[AttemptRow]) -> None:
        """Forget the requests to attempts that are not in `live` any more."""
        running = {attempt.token for attempt in live}
        for told in (self._asked, self._ended):
            for token in told.keys() - running:
                del told[token]


def _loads(attempt: AttemptRow) -> bool:
    """Return whether the attempt has reported neither a step nor a checkpoint yet."""
    report = last_report.report_so_far(Path(attempt.run_dir))
    return report.step is None and report.checkpoint_step is None


def unsaved_seconds(attempt: AttemptRow, now: Moment) -> float:
    """Return the seconds of work since the attempt last saved, or since its start if it has not
    saved.

    If its steps or their duration are unknown, return the whole running time of the attempt.
    """
    report = last_report.report_so_far(Path(attempt.run_dir))
    step = report.step or {}
    done, each = step.get("step"), step.get("step_seconds")
    if type(done) is int and isinstance(each, int | float) and 0 <= each < math.inf:
        begun = find_job_checkpoints.step_of(Path(attempt.resumed_from or "").name) or 0
        return max(0, done - max(report.checkpoint_step or 0, begun)) * float(each)
    return 0.0 if attempt.began is None else max(0.0, now.seconds_since(attempt.began))


def why_not_saved(job: JobRow, attempts: Sequence[AttemptRow]) -> str | None:
    """Return one sentence that says why the job might not save when it is asked to end; None if it
    will save.

    The built-in trainer always saves. A program of the user counts as saving if its
    checkpoints are known.
    """
    spec = job.reading.spec
    if spec is None:
        return "its job file cannot be read"
    if (process := spec.script.process) is not None:
        return (
            f"it watches process {process.pid}, which zerotools did not start, and cannot start "
            "again"
        )
    if spec.engine != "script" or spec.script.checkpoint_dir is not None:
        return None
    if last_report.latest_checkpoint(job, attempts) is not None:
        return None
    return (
        "its program has reported no checkpoint, and [script] names no checkpoint_dir, so the "
        "program would start from the beginning"
    )
