"""Submits one job to Slurm and watches it until its end.

The job runs without this process: if the watcher is killed, the daemon starts a new watcher, which
continues. While Slurm's controller does not respond, the watcher waits. Its exit status is 0 if the
job succeeded, EXIT_STOPPED if it ended on request, EXIT_NOT_READY if it could not be submitted
because Slurm does not respond, and otherwise EXIT_BAD_JOB.

A job is submitted only once, even if this process is restarted. The name of the job's directory is
made from the daemon's data, so the restarted process finds the directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import select
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported, ZerotoolsError
from zerotools.io.telemetry.datagram_sender import Sender
from zerotools.jobs import states
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm.job_directory import JobDirectory, read_record, slurm_home, write_record
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_again, submit_job
from zerotools.jobs.states import TERMINAL
from zerotoolsd.supervisor.attempt_plan import EXIT, OWN, SLURM_NAME
from zerotoolsd.supervisor.exit_record.decide_outcome import EXIT_STOPPED
from zerotoolsd.supervisor.exit_record.first_failure import EXIT_BAD_JOB, EXIT_NOT_READY
from zerotoolsd.supervisor.spawn_child import SignalWaker
from zerotoolsd.supervisor.transient_os_errors import NOT_READY, error_text, is_transient

LOOK_SECONDS, MOST_LOOK_SECONDS = 3.0, 30.0
SPEC = "spec.json"


def main() -> int:
    """Watch the job of the run directory ZEROTOOLS_RUN_DIR. Return the exit status."""
    run_dir = Path(os.environ["ZEROTOOLS_RUN_DIR"])
    sender = Sender(os.environ.get("ZEROTOOLS_NOTIFY"))
    stored = read_stored(json.loads((run_dir / SPEC).read_text("utf-8")))
    assert stored.spec is not None
    attendant = SlurmWatcher(run_dir, sender, stored.spec)
    try:
        return attendant.run()
    except SlurmUnreachable as error:
        attendant.report_failure(str(error), kind=NOT_READY)
        return EXIT_NOT_READY
    except ZerotoolsError as error:
        attendant.report_failure(str(error))
        return EXIT_BAD_JOB
    except OSError as error:
        if not is_transient(error):
            raise
        attendant.report_failure(error_text(error), kind=NOT_READY)
        return EXIT_NOT_READY


class SlurmWatcher:
    """Submits one job to Slurm, and watches it there until it has ended."""

    def __init__(
        self, run_dir: Path, sender: Sender, spec: JobSpec, commands: SlurmCommands | None = None
    ) -> None:
        self._run_dir, self._sender, self._spec = run_dir, sender, spec
        self._commands = commands or SlurmCommands()
        self._home = slurm_home()
        self._jobs = SlurmJobs(self._commands, self._home)
        self._reported: object = None
        self._reported_at = time.monotonic()

    def run(self) -> int:
        """Submit the job and watch it until it has ended. Return the exit status.

        Raises ZerotoolsError if the job could not be submitted.
        """
        signals = SignalWaker()
        key = key_of(self._run_dir.parent, self._spec.name)
        directory = submit_once(self._commands, self._jobs, self._home, self._spec, key)
        name = directory.path.name
        self._log_line(f"the job's records under Slurm are in {directory.path}")
        relay = ReportRelay(self._jobs, name, self._sender, self._run_dir)
        waiting = select.poll()
        waiting.register(signals.socket, select.POLLIN)
        asked = False
        while True:
            view = self._jobs.job(name)
            self._report_state(view)
            relay.catch_up(view)
            if view["state"] in states.TERMINAL:
                relay.catch_up(self._jobs.job(name))
                return self._report_end(directory, view, asked=asked)
            self._lift_wait(view)
            waiting.poll(self._pause(view) * 1000)
            signals.clear()
            if signals.asked and not asked:
                asked = self._cancel(name)

    def _pause(self, view: dict[str, Any]) -> float:
        """Return the seconds until the next look at the job. A job may wait for days, and a hundred
        watchers must not be a burden for Slurm's controller.
        """
        waits = view["state"] in (states.QUEUED, states.ON_HOLD)
        quiet = time.monotonic() - self._reported_at
        return min(max(LOOK_SECONDS, quiet / 10), MOST_LOOK_SECONDS) if waits else LOOK_SECONDS

    def _cancel(self, name: str) -> bool:
        """Ask the job to end. Return False if the request cannot be written now."""
        try:
            self._jobs.cancel(name)
        except SlurmUnreachable as error:  # it reads in its directory that it is to end
            self._log_line(str(error))
        except BadRequest:
            pass  # it has ended meanwhile
        except OSError as error:
            if not is_transient(error):
                raise
            self._log_line(f"a record cannot be written: {error_text(error)}")
            return False
        return True

    def _lift_wait(self, view: dict[str, Any]) -> None:
        """Let Slurm restart the job at once, instead of after its usual two minutes."""
        again = view["attempts"] and view["slurm"]["state"] == "PENDING"
        if again and "BeginTime" in str(view["reason"]):
            with suppress(BadRequest, SlurmUnreachable, Unsupported):
                self._commands.begin_now(str(view["slurm"]["id"]))

    def _report_state(self, view: dict[str, Any]) -> None:
        number, state = view["slurm"]["id"], view["slurm"]["state"]
        said = (number, state, view["state"], view["reason"])
        if said == self._reported:
            return
        self._reported, self._reported_at = said, time.monotonic()
        where = f" on {view['slurm']['nodes_now']}" if view["slurm"]["nodes_now"] else ""
        words = f"Slurm's job {number or '(number not known yet)'}: {state or 'not listed'}{where}"
        reason = f"; {view['reason']}" if view["reason"] else ""
        self._log_line(f"{words}; the job is {states.display_text(view['state'])}{reason}")
        if view["state"] in (states.QUEUED, states.LAUNCHING, states.ON_HOLD):
            waits = f"waiting in Slurm's queue (job {number})"
            doing = (f"starting under Slurm{where}" if where else waits) + reason
            self._sender.send(
                {"event": "phase", "rank": 0, "doing": doing, "time": time.time()}, wait=True
            )

    def _report_end(self, directory: JobDirectory, view: dict[str, Any], *, asked: bool) -> int:
        state, reason = view["state"], view["reason"] or "it did not say why"
        status = EXIT_STOPPED if asked else EXIT_BAD_JOB
        if state == states.SUCCEEDED:
            status = 0
        elif asked:
            self._log_line(f"the job has ended: {reason}")
        else:
            self.report_failure(f"its state under Slurm is {states.display_text(state)}: {reason}")
        note_end_reported(directory, self._run_dir, status)
        return status

    def report_failure(self, why: str, kind: str | None = None) -> None:
        """Report in one sentence the reason why this process ends."""
        self._log_line(why)
        told: dict[str, Any] = {"event": "error", "rank": 0, "message": why, "time": time.time()}
        self._sender.send(told | ({} if kind is None else {"kind": kind}), wait=True)

    def _log_line(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


_PART = 1 << 18
MOST_LOG_BYTES = 64 << 20
"""Largest size, in bytes, of each rank's log for one attempt here. The complete log is in the
directory of the job.
"""
TOLD = frozenset(
    {
        *("step", "checkpoint", "eval", "phase", "resumed", "skipped_checkpoint", "error"),
        *("fetched", "uploaded", "upload_failed"),
    }
)


class ReportRelay:
    """Copies the reports and logs of the job `name` to the files that the daemon reads.

    The log of rank 0 is written to the standard output, and the logs of other ranks are written to
    files.
    """

    def __init__(self, jobs: SlurmJobs, name: str, sender: Sender, run_dir: Path) -> None:
        self._jobs, self._name, self._sender, self._run_dir = jobs, name, sender, run_dir
        self._attempt = 0
        self._since = 0
        self._offsets: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def catch_up(self, view: dict[str, Any]) -> None:
        """Copy all reports and log lines of the newest attempt that were not copied yet. `view`
        is the current state of the job.
        """
        numbers = [each["number"] for each in view["attempts"]]
        while numbers:
            current = self._attempt or numbers[-1]
            if self._attempt != current:
                self._begin(current)
            if current in numbers:
                self._forward_records()
                for rank in range(int(view["world_size"])):
                    self._copy(rank)
            later = [number for number in numbers if number > current]
            if not later:
                return
            self._begin(later[0])

    def _begin(self, attempt: int) -> None:
        self._attempt, self._since = attempt, 0
        self._offsets.clear()

    def _forward_records(self) -> None:
        while True:
            try:
                answer = self._jobs.progress(self._name, attempt=self._attempt, since=self._since)
            except BadRequest:
                return
            for record in answer["records"]:
                if record.get("event") in TOLD and record.get("event") != "error":
                    self._sender.send(record, wait=True)
            if answer["next"] == self._since:
                return
            self._since = answer["next"]

    def _copy(self, rank: int) -> None:
        while True:
            offset = self._offsets.get(rank, 0)
            part = self._jobs.logs(
                self._name, attempt=self._attempt, rank=rank, offset=offset, limit=_PART
            )
            if not part.data:
                return
            self._offsets[rank] = part.next_offset
            room = MOST_LOG_BYTES - self._written.get(rank, 0)
            data = part.data[: max(0, room)]
            self._written[rank] = self._written.get(rank, 0) + len(data)
            if rank == 0:
                os.write(1, data)
            elif data:
                with (self._run_dir / f"rank-{rank}.log").open("ab") as file:
                    file.write(data)


TOLD_FILE = "told.json"
"""Name of the file in a submission's directory that says which process has reported the end to
the daemon.
"""


def key_of(job_dir: Path, name: str | None) -> str:
    """Return a unique name by which a job of this daemon can be found in Slurm. Raises BadRequest,
    and OSError for a transient error of the disk.

    The name stays unique even if a daemon has lost its state and uses job numbers again.
    """
    try:
        own = _word_of(job_dir)
    except OSError as error:
        if is_transient(error):
            raise
        raise BadRequest(f"{job_dir} cannot be written: {error.strerror}") from None
    place = f"{socket.gethostname()}:{job_dir}:{own}"
    return f"{(name or 'job')[:30]}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def _word_of(job_dir: Path) -> str:
    """Return the random word that makes the job's name in Slurm unique. It is stored in the job's
    directory at the first attempt, and never changes.
    """
    own = job_dir / OWN  # another user than the daemon's may create files only there
    path = (own if own.is_dir() else job_dir) / SLURM_NAME
    if (known := read_record(path)) is None:
        known = {"word": secrets.token_hex(16)}
        write_record(path, known)
    return str(known.get("word"))


def submit_once(
    commands: SlurmCommands, jobs: SlurmJobs, home: Path, spec: JobSpec, key: str
) -> JobDirectory:
    """Submit the job to Slurm if this was not done before. Return the directory of the job.

    If a watcher has already reported the end of the last submission, the job is submitted again,
    for its next attempt.

    Raises BadRequest, SlurmUnreachable and Unsupported if the job could not be submitted.
    """
    claim = partial(jobs.claim_output, spec)
    directory, _ = submit_job(commands, home, spec, key=key, attended=True, claim=claim)
    view = jobs.job(directory.path.name)
    if view["state"] in TERMINAL and is_end_reported(directory):
        submit_again(commands, directory, spec, claim=claim)
    return directory


def is_end_reported(directory: JobDirectory) -> bool:
    """Return whether a watcher has reported the end of the newest submission to the daemon.

    The report counts only if the watcher then exited with the status that it recorded.
    """
    told = read_record(_end_report_path(directory))
    if told is None:
        return False
    record = read_record(Path(str(told.get("run_dir"))) / EXIT) or {}
    ranks = record.get("ranks") or [{}]
    return bool(ranks[0].get("exit_code") == told.get("status"))


def note_end_reported(directory: JobDirectory, run_dir: Path, status: int) -> None:
    """Record that the watcher with the run directory `run_dir` now reports the end of the job
    and exits with `status`.
    """
    write_record(_end_report_path(directory), {"run_dir": str(run_dir), "status": status})


def _end_report_path(directory: JobDirectory) -> Path:
    return directory.submission_path(max(directory.submissions())) / TOLD_FILE
