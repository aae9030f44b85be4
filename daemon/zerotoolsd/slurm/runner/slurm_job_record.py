"""The record of a job under Slurm: its state and attempts, in the job's directory.

States and ends are handled by the same code as in the daemon's queue (`queue.lifecycle`). So a job
that fails under Slurm is restarted by the same rules.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.spec import LOCAL
from zerotools.jobs.slurm.job_directory import (
    END,
    OUTPUT,
    STATE,
    VIEW,
    JobDirectory,
    read_record,
    write_record,
)
from zerotools.jobs.slurm.state_from_slurm import spec_of
from zerotoolsd.attempts import cause_of_end, make_end_event
from zerotoolsd.attempts.cause_of_end import cause_of, saved_step
from zerotoolsd.attempts.job_environment import unshown_values
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue import clocks, lifecycle, time_limit
from zerotoolsd.queue.change_state import policy_of
from zerotoolsd.queue.clocks import began_of
from zerotoolsd.queue.lifecycle import JobStatus, LifecycleEvent
from zerotoolsd.queue.rows import ENDED, RUNNING, AttemptRow, JobRow
from zerotoolsd.service import make_job_view
from zerotoolsd.supervisor.transient_os_errors import is_transient

_POLICY = policy_of(Config().retry)
_QUIET_SECONDS = Config().watch.no_progress_seconds


def read_job(directory: JobDirectory, number: int) -> JobRow:
    """Return the job of a submission, from its directory. Raises BadFile if it cannot be read.

    `number` is the number of the job in Slurm, or another number that is shown to users.
    """
    spec, record = spec_of(directory), directory.job() or {}
    row = JobRow(
        id=number,
        uid=int(record.get("uid", os.getuid())),
        name=str(record.get("name") or "job"),
        spec_text=json.dumps(job_to_dict(spec)),
        given_text=json.dumps(record.get("given") or {}),
        spec_version=str(record.get("spec_version")),
        output_dir=spec.output_dir or str(directory.path / OUTPUT),
        standing=JobStatus(),
        created=float(record.get("created") or 0.0),
        started=None,
        ended=None,
    )
    return row.with_reading(spec)


class JobState:
    """The state of one job during one submission to Slurm."""

    def __init__(self, directory: JobDirectory, submission: int, slurm_id: str) -> None:
        """Read the job and its state from `directory`. Raises BadFile if the job cannot be
        read.

        `submission` is the number of the submission, and `slurm_id` the job id of Slurm.
        """
        self._directory, self._submission, self._slurm_id = directory, submission, slurm_id
        self.job = read_job(directory, int(slurm_id))
        kept = read_record(directory.path / STATE) or {}
        self.attempts = [_attempt_of(each) for each in kept.get("attempts", ())]
        self._nodes = [int(each) for each in kept.get("nodes", ())]
        started = kept.get("started")
        standing = JobStatus(best_step=int((kept.get("standing") or {}).get("best_step", 0)))
        if kept.get("submission") == submission:
            standing = JobStatus(**kept["standing"])
        self.job = replace(self.job, standing=standing, started=started).with_reading(self.job.spec)
        self._is_stored = True

    @property
    def standing(self) -> JobStatus:
        """Return the state of the job, its reason and its counters."""
        return self.job.standing

    @property
    def open_attempt(self) -> AttemptRow | None:
        """Return the attempt without a recorded end; None if there is no such attempt."""
        if self.attempts and self.attempts[-1].state != ENDED:
            return self.attempts[-1]
        return None

    def advance(self, event: LifecycleEvent) -> None:
        """Change the state of the job according to `event`, and store the new state."""
        now = time.time()
        after = lifecycle.advance_job(self.standing, event, now=now, policy=_POLICY)
        ended = now if after.state in states.TERMINAL else None
        started = self.job.started or (now if after.state == states.RUNNING else None)
        self._set(after, started=started, ended=ended)

    def wait_again(self, reason: str) -> None:
        """Set the state of the job to queued for the reason `reason`, because Slurm restarts the
        job or has already restarted it.
        """
        self._set(replace(self.standing, state=states.QUEUED, reason=reason, eligible_at=None))

    def halt(self, reason: str) -> None:
        """Set the state of the job to halted for the reason `reason`: the job has saved and ended,
        and Slurm does not restart it.
        """
        self._set(replace(self.standing, state=states.HALTED, reason=reason), ended=time.time())

    def begin(self, attempt: AttemptRow, nodes: int) -> None:
        """Record a new attempt on `nodes` nodes. Call this before the attempt starts."""
        self.attempts.append(attempt)
        self._nodes.append(nodes)
        self.advance(lifecycle.Admit())

    def record_running(self, record: Mapping[str, Any]) -> None:
        """Record that the newest attempt is running. `record` has the contents of `run.json` of
        node 0.
        """
        began = began_of(record) or clocks.read_clocks()
        self.attempts[-1] = replace(
            self.attempts[-1],
            state=RUNNING,
            started=began.time,
            started_clock=began.clock,
            boot_id=began.boot_id,
        )
        self.advance(lifecycle.Started())

    def record_end(self, record: Mapping[str, Any], *, asked: bool) -> None:
        """Record the end of the newest attempt, from its `record`.

        `asked` is True if the attempt was asked to end at the job's time limit.
        """
        *before, row = self.attempts
        cause = cause_of(record, on_gpus=bool(row.gpu_uuids))
        record = cause_of_end.with_explained_cause(
            record, cause, unshown_values(self.job.reading.spec)
        )
        when = time_limit.end_of(record, row.began, time.time())
        self.attempts[-1] = replace(row, state=ENDED, ended=when, result=dict(record), cause=cause)
        event = make_end_event.end_event(
            self.job, record, asked=asked, before=before, kind=cause, attempt=row
        )
        self.advance(event)

    def settle(self, record: Mapping[str, Any], why: str) -> None:
        """Record the end of the newest attempt if its batch process was killed and could not record
        the end.

        The attempt may belong to an earlier submission.
        """
        if self.standing.state in states.ACTIVE:
            asked = states.GIVING_WAY | {states.STOPPING}
            if record.get("outcome") == lifecycle.KILLED and self.standing.state not in asked:
                self.advance(lifecycle.Yield(why=why))
            self.record_end(record, asked=False)
            return
        self.attempts[-1] = replace(
            self.attempts[-1], state=ENDED, ended=time.time(), result=dict(record)
        )
        best = max(self.standing.best_step, saved_step(record))
        done = record.get("outcome") == lifecycle.FINISHED
        state = states.SUCCEEDED if done else self.standing.state
        self._set(replace(self.standing, state=state, best_step=best))

    def seconds_left(self) -> float | None:
        """Return the seconds that are left of the job's time limit; None if it has no limit."""
        here = replace(self.job.spec, backend=LOCAL)
        return time_limit.seconds_left(here, self.attempts, clocks.read_clocks())

    def finish(self) -> None:
        """Record that the submission has ended, with its final state. Raises OSError."""
        standing = self.standing
        self.store()
        self._write_view(None)
        write_record(
            self._directory.submission_path(self._submission) / END,
            {"state": standing.state, "reason": standing.reason, "time": time.time()},
        )

    def show(self, reason: str | None = None) -> None:
        """Write the file with the state of the job, which the commands of users read.

        If `reason` is given, it replaces the reason of the state in the file. After an error that
        may pass, such as a full disk, the next call writes the file.
        """
        try:
            self.store()
            self._write_view(reason)
        except OSError as error:
            if not is_transient(error):
                raise

    def _write_view(self, reason: str | None) -> None:
        view = make_job_view.job_view(self.job, self.attempts, reason, quiet_seconds=_QUIET_SECONDS)
        tree = view.to_json()
        nodes = self._nodes[-1] if self._nodes else self.job.spec.fewest_nodes
        tree["id"] = f"slurm:{self._slurm_id}"
        tree["world_size"] = nodes * self.job.spec.world_size
        tree["slurm"] = {
            "id": self._slurm_id,
            "submission": self._submission,
            "ranks_of_node": self.job.spec.world_size,
            "nodes": list(self._nodes),
            "time": time.time(),
        }
        write_record(self._directory.path / VIEW, tree)

    def _set(self, standing: JobStatus, **more: Any) -> None:
        self.job = replace(self.job, standing=standing, **more).with_reading(self.job.spec)
        self._is_stored = False
        self.show()

    def store(self) -> None:
        """Write the state of the job and its attempts, if they have changed. Raises OSError."""
        if self._is_stored:
            return
        write_record(
            self._directory.path / STATE,
            {
                "submission": self._submission,
                "standing": asdict(self.standing),
                "started": self.job.started,
                "attempts": [asdict(each) for each in self.attempts],
                "nodes": self._nodes,
            },
        )
        self._is_stored = True


def _attempt_of(tree: Mapping[str, Any]) -> AttemptRow:
    return AttemptRow(**{**tree, "gpu_uuids": tuple(tree["gpu_uuids"])})
