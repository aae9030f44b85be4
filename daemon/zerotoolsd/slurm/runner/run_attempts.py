"""The process of a batch script: runs attempts until the job ends or Slurm takes back the nodes.

Inside one allocation a failed job is restarted by the daemon's rules, because the nodes are
available. Slurm takes the nodes back by SIGTERM (`--signal=B:TERM@120` before the end of the time,
preemption, scancel). What follows after the job has saved depends on who asked it to end:

    its user (stop.json)     the job is over: cancelled
    its own time_limit       the job is over: stopped
    Slurm, and the job       this process queues it again (end of the time, preemption)
    still runs in Slurm
    Slurm, and it ends       the job continues only if Slurm queues it again (scancel, scontrol
    the job                  requeue)
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported
from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.job_rules import most_nodes
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.state_from_slurm import BY_SLURM
from zerotools.jobs.slurm.submit_to_slurm import own_of
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.cause_of_end import saved_step
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow
from zerotoolsd.slurm.runner.liveness import BEAT_SECONDS, MASTER, AttemptTurns, LivenessFile
from zerotoolsd.slurm.runner.slurm_job_record import JobState
from zerotoolsd.slurm.runner.srun_all_nodes import (
    InheritedSrun,
    NodeStep,
    combined_record,
    settled_record,
    step_environment,
)
from zerotoolsd.supervisor.attempt_plan import OUTSIDE, TIME_LIMIT
from zerotoolsd.supervisor.spawn_child import handle_until_exit
from zerotoolsd.supervisor.transient_os_errors import NOT_READY, is_transient

Value = TypeVar("Value")

LOOK_SECONDS = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which Slurm asks the batch script to end."""
FORGOTTEN = (
    "Slurm's controller does not know the job any more, because it restarted before it had "
    "saved the job; retry it"
)
LAST_SECONDS = 20.0
IN_VAIN = 3
"""After this many starts in a row without a new saved step, the job is halted."""
_REQUEUE_TRIES = 6
_REQUEUE_SECONDS = 5.0
_KILLED_SECONDS = 120.0
"""Longest time, in seconds, until Slurm has ended a job that it queues again."""


_OF_SIGNAL = (lifecycle.CRASHED, lifecycle.LOST, NOT_READY)
"""Outcomes of ranks that were ended by a signal of Slurm. These ranks have not failed."""


@dataclass(frozen=True)
class Allocation:
    """An allocation of Slurm: its `job_id`, and the `names` of its nodes. This process runs on the
    first one.
    """

    job_id: str
    names: tuple[str, ...]
    address: str


class AttemptRunner:
    """Runs the attempts of one job inside one allocation of Slurm."""

    def __init__(
        self,
        directory: JobDirectory,
        submission: int,
        allocation: Allocation,
        commands: SlurmCommands,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._directory, self._submission = directory, submission
        self._allocation, self._commands = allocation, commands
        self._environment = environment
        self._state = JobState(directory, submission, allocation.job_id)
        self._signalled = False
        self._turns = AttemptTurns(
            directory, submission, _log_line, lambda: self._signalled or self._is_stopped()
        )

    def run(self, *, after_kill: bool = False) -> int:
        """Run attempts until there is nothing left to do for the job in this allocation.

        `after_kill` is true if this process replaces one that was killed, and so continues with
        its attempt. Returns 0 if the job has succeeded, else 1.
        """
        handle_until_exit(self._on_signal, *SIGNALS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        number_of = self._allocation.job_id
        self._when_writable(lambda: self._directory.record_number(self._submission, number_of))
        row = self._state.open_attempt if after_kill else None
        status = None if row is None else self._take_over(row)
        while status is None:
            status = self._next_attempt()
        return status

    def _next_attempt(self) -> int | None:
        """Run the next attempt. Return the exit status of this process; None if another attempt
        follows.
        """
        number = self._when_writable(self._turns.next_attempt)
        if number is None:
            return self._without_turn()
        # An earlier copy of this process may have continued since this copy began.
        self._state = JobState(self._directory, self._submission, self._allocation.job_id)
        beat = LivenessFile(self._directory.attempt_path(number), MASTER)
        beat.refresh()
        self._settle_left_over()
        if self._is_done():
            return self._ended()
        return self._follow(self._begin(number), number, beat)

    def _take_over(self, row: AttemptRow) -> int | None:
        """Continue with the attempt of a process that was killed; see `_next_attempt`."""
        _log_line(f"the process before was killed; attempt {row.number} continues")
        beat = LivenessFile(self._directory.attempt_path(row.number), MASTER)
        beat.refresh()
        names = self._allocation.names[: self._nodes_of(row)]
        step = NodeStep(self._directory, row.number, names, srun=InheritedSrun(os.getppid()))
        return self._follow(step, row.number, beat)

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def _when_writable(self, action: Callable[[], Value]) -> Value:
        """Return the result of `action`. After an error that may pass, such as a full disk of the
        records, repeat it until it succeeds, or until Slurm takes back the nodes.
        """
        told: object = None
        while True:
            try:
                return action()
            except OSError as error:
                if self._signalled or not is_transient(error):
                    raise
                if told != (told := error.errno):
                    _log_line(f"waits: the records of the job cannot be written: {error}")
            time.sleep(BEAT_SECONDS)

    def _is_stopped(self) -> bool:
        return self._directory.stop() is not None

    def _is_done(self) -> bool:
        return self._state.standing.state in states.TERMINAL

    def _ended(self) -> int:
        self._when_writable(self._state.finish)
        standing = self._state.standing
        _log_line(f"the job {standing.state}: {standing.reason or 'all its steps are done'}")
        return 0 if standing.state == states.SUCCEEDED else 1

    def _without_turn(self) -> int:
        end = self._directory.end(self._submission)
        if end is not None:
            return 0 if end.get("state") == states.SUCCEEDED else 1
        newest = max(self._directory.submissions()) == self._submission
        if not newest or self._turns.others():
            return 1  # another copy has the job's records now
        self._state = JobState(self._directory, self._submission, self._allocation.job_id)
        self._settle_left_over()
        if self._is_stopped() and not self._is_done():
            self._cancel()
        if self._is_done():
            return self._ended()
        return self._give_back() if self._signalled else 1

    # -- one attempt

    def _settle_left_over(self) -> None:
        """Record the end of an attempt if its batch process was killed before it could record
        the end.
        """
        row = self._state.open_attempt
        if row is None:
            return
        nodes = self._nodes_of(row)
        record = combined_record(
            settled_record(self._directory, row.number, nodes),
            [f"node {node}" for node in range(nodes)],
        )
        if record.get("outcome") not in (lifecycle.FINISHED, lifecycle.BAD_JOB):
            cause = f"Slurm ended the attempt before its end was recorded ({record.get('cause')})"
            record |= {"outcome": lifecycle.KILLED, "cause": cause}
        self._state.settle(record, BY_SLURM)

    def _nodes_of(self, row: AttemptRow) -> int:
        return max(1, (row.world_size or 1) // self._state.job.spec.world_size)

    def _begin(self, number: int) -> NodeStep:
        given, spec = self._allocation.names, self._state.job.spec
        names = given[: most_nodes(spec, len(given))]
        if len(names) < len(given):
            _log_line(
                f"note: the ranks of {len(given)} nodes do not divide the batch evenly: "
                f"{count_text(len(names), 'node')} train, and the others are idle"
            )
        run_dir = self._directory.run_dir(number, 0)
        before = self._state.attempts
        reported = last_report.checkpoints_before(before)
        row = AttemptRow(
            job_id=self._state.job.id,
            number=number,
            token=secrets.token_hex(14),
            state=LAUNCHING,
            run_dir=str(run_dir),
            gpu_uuids=(),
            resumed_from=reported[0] if reported else spec.resume_from,
            started=None,
            ended=None,
            result=None,
            host=names[0],
            world_size=len(names) * spec.world_size,
        )
        if self._state.standing.state != states.QUEUED:
            self._state.wait_again("")
        self._state.begin(row, len(names))
        self._when_writable(self._state.store)
        step = NodeStep(self._directory, number, names)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        settings = {
            "token": row.token,
            "submission": self._submission,
            "job_id": self._allocation.job_id,
            "address": f"{_bracketed(self._allocation.address)}:{port}",
            "reported": reported,
            "by_program": last_report.reported_by_program(before),
        }
        environment = step_environment(self._environment)
        self._when_writable(lambda: step.begin(settings, environment))
        where = ", ".join(names)
        _log_line(f"attempt {number}: {len(names)} x {spec.world_size} ranks on {where}")
        return step

    def _follow(self, step: NodeStep, number: int, beat: LivenessFile) -> int | None:
        """Wait for the end of an attempt, and record it. Return the exit status of this process;
        None if another attempt follows.
        """
        expired = self._watch(step, number, beat)
        records = step.records()
        called = [f"node {node} ({name})" for node, name in enumerate(step.names)]
        record = combined_record(records, called)
        _log_line(f"attempt {number} ended: {record.get('outcome')}: {record.get('cause')}")
        if self._state.standing.state in (states.LAUNCHING, states.RUNNING):
            # Slurm's signal reaches the ranks, too: they may have ended before the request.
            if self._is_stopped():
                self._cancel()
            elif self._signalled or _was_asked_by_slurm(record):
                self._state.advance(lifecycle.Yield(why=BY_SLURM))
        if self._state.standing.state == states.YIELDING and record.get("outcome") in _OF_SIGNAL:
            record |= {"outcome": lifecycle.KILLED}
        self._state.record_end(record, asked=expired)
        if self._turns.is_superseded(number):
            _log_line("a newer attempt of this job began elsewhere; this process ends")
            return 1
        if self._is_done():
            return self._ended()
        if self._state.standing.state == states.QUEUED:
            return self._give_back()
        if self._is_forgotten():
            self._state.halt(FORGOTTEN)
            return self._ended()
        self._wait_for_retry()
        return None

    def _watch(self, step: NodeStep, number: int, beat: LivenessFile) -> bool:
        """Wait until all nodes have ended. Return whether the nodes were asked to end because of
        the job's time limit.
        """
        due, expired = 0.0, False
        while not step.is_over():
            now = time.monotonic()
            self._note_began(step)
            if now >= due:
                due = now + BEAT_SECONDS
                beat.refresh()
                if self._turns.is_superseded(number):
                    step.kill()
                self._state.show()
                expired = self._ask(step, expired)
            time.sleep(LOOK_SECONDS)
        self._note_began(step)
        return expired

    def _note_began(self, step: NodeStep) -> None:
        if self._state.standing.state == states.LAUNCHING and (run := step.began()):
            self._state.record_running(run)

    def _ask(self, step: NodeStep, expired: bool) -> bool:
        state = self._state.standing.state
        if state in (states.LAUNCHING, states.RUNNING, *states.GIVING_WAY) and self._is_stopped():
            self._cancel()
            step.ask("cancelled")
        elif state in (states.LAUNCHING, states.RUNNING) and self._signalled:
            self._state.advance(lifecycle.Yield(why=BY_SLURM))
            warning = float(self._state.job.spec.slurm.warning_seconds)
            # Kill remaining processes while there is time to queue the job again.
            step.ask(BY_SLURM, max(warning / 2, warning - LAST_SECONDS))
        left = self._state.seconds_left()
        if state == states.RUNNING and left is not None and left <= 0 and not expired:
            step.ask(TIME_LIMIT)
            return True
        return expired

    def _cancel(self) -> None:
        who = (self._directory.stop() or {}).get("who") or "its user"
        self._state.advance(lifecycle.Cancel(who=str(who)))

    # -- between attempts

    def _is_forgotten(self) -> bool:
        """Return whether the controller of Slurm responds but does not know this job.

        This happens if the controller was killed before it stored the job. Slurm can then never
        start anything under the number of the job.
        """
        try:
            found = self._commands.described(self._allocation.job_id)
        except (SlurmUnreachable, BadRequest, Unsupported):
            return False
        return own_of(self._directory, found) is None

    def _wait_for_retry(self) -> None:
        until = self._state.standing.eligible_at or 0.0
        while time.time() < until and not self._signalled and not self._is_stopped():
            time.sleep(LOOK_SECONDS)
        if self._is_stopped():
            return  # the next turn reports it
        self._state.advance(lifecycle.Retry())

    def _give_back(self) -> int:
        """Queue the job again, or record why not, after it has saved because Slurm takes back the
        nodes.

        Returns the exit status of this process.
        """
        reason = self._state.standing.reason or BY_SLURM
        try:
            found = self._commands.described(self._allocation.job_id)
        except (SlurmUnreachable, BadRequest, Unsupported):
            found = None
        if self._is_forgotten():
            self._state.halt(f"{reason}; {FORGOTTEN}")
            return self._ended()
        if found is not None and found.state != "RUNNING":
            _log_line(f"Slurm ends the job ({found.state}), and decides whether to queue it again")
            return 1
        if self._is_in_vain():
            self._state.halt(
                f"{reason}; {IN_VAIN} starts in a row have saved no new step: set a longer "
                "slurm.time or a shorter slurm.warning, and submit the job again"
            )
            return self._ended()
        if not self._state.job.spec.slurm.requeue:
            self._state.halt(f"{reason}; slurm.requeue = false: retry the job by hand")
            return self._ended()
        why = self._requeue()
        if why is None:
            return 1  # Slurm has ended this process by now, or does not
        self._state.halt(f"{reason}; it could not be queued again: {why}")
        return self._ended()

    def _is_in_vain(self) -> bool:
        """Return whether the last starts of the job have saved nothing new, so that it would be
        restarted forever.

        False for a user's program, because its saved steps are not always known.
        """
        if self._state.job.spec.engine == "script":
            return False
        return is_in_vain([saved_step(each.result or {}) for each in self._state.attempts])

    def _requeue(self) -> str | None:
        """Ask Slurm to queue the job again. Return the reason if that fails; None if Slurm queues
        it.
        """
        why = ""
        for again in range(_REQUEUE_TRIES):
            if again:
                time.sleep(_REQUEUE_SECONDS)
            try:
                self._state.wait_again(f"{self._state.standing.reason or BY_SLURM}; queued again")
                self._commands.requeue(self._allocation.job_id)
            except SlurmUnreachable as error:
                why = str(error)
                continue
            except (BadRequest, Unsupported) as error:
                return str(error)
            time.sleep(_KILLED_SECONDS)
            return None
        return why


def is_in_vain(steps: Sequence[int]) -> bool:
    """Return whether the last IN_VAIN starts have saved nothing new.

    `steps` has, for each start, the newest step that was saved when it ended.
    """
    before, last = steps[:-IN_VAIN], steps[-IN_VAIN:]
    return len(last) == IN_VAIN and max(last) <= max(before, default=0)


def allocation_of(commands: SlurmCommands, environment: Mapping[str, str]) -> Allocation:
    """Return the allocation that the environment variables of Slurm describe. Raises KeyError
    outside of a batch script.
    """
    listed = environment["SLURM_JOB_NODELIST"]
    own = environment.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        said = subprocess.run(
            [commands.path_of("scontrol"), "show", "hostnames", listed],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        names = tuple(said.stdout.split())
    except (subprocess.SubprocessError, Unsupported):
        names = ()
    count = int(environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    if len(names) != count:
        names = (own, *(f"node {node}" for node in range(1, count)))
    return Allocation(
        job_id=environment["SLURM_JOB_ID"], names=names, address=commands.node_address(own)
    )


def _was_asked_by_slurm(record: Mapping[str, Any]) -> bool:
    """Return whether the nodes ended because Slurm sent a signal to all of their processes."""
    return record.get("stop_reason") in ("Slurm", OUTSIDE)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _log_line(text: str) -> None:
    with suppress(OSError):  # the log of the batch script may be on a full disk
        os.write(1, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())
