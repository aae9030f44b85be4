"""List, show, stop and resume one user's jobs under Slurm.

The jobs are read from their directories.

A job has the same form as a job of the daemon, so the same commands can show both. A job is named
by the number that Slurm gave to any of its submissions: `slurm:4711`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest, SlurmUnreachable, Unsupported
from zerotools.jobs import states
from zerotools.jobs.client.daemon_client import LogBytes
from zerotools.jobs.jobfile_tables.job_rules import check_rules
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm.claim_output_directory import claim_output
from zerotools.jobs.slurm.job_directory import (
    LOG,
    VIEW,
    JobDirectory,
    job_directories,
    read_record,
    slurm_home,
    submitter_name,
    write_record,
)
from zerotools.jobs.slurm.remove_job_records import clean_jobs
from zerotools.jobs.slurm.slurm_commands import ControllerJob, SlurmCommands
from zerotools.jobs.slurm.state_from_slurm import (
    FRESH_SECONDS,
    NO_VIEW,
    Known,
    first_view,
    spec_of,
    state_and_reason,
)
from zerotools.jobs.slurm.submit_to_slurm import find_number, own_of, submit_again

PREFIX = "slurm:"
ANSWER_SECONDS = 5.0
"""An answer of Slurm's controller is used for so long."""
_LARGEST_PART = 1 << 20
_MOST_RECORDS = 1000


ENDED = "slurm.json"
"""The name of the file with the saved report, in the directory of a submission."""
_FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "TIMEOUT"}
)


class SlurmJobs:
    """The jobs of one user under Slurm.

    A `reference` or `job_id` is a number of Slurm or `slurm:NUMBER`.
    """

    def __init__(self, commands: SlurmCommands | None = None, home: Path | None = None) -> None:
        self._commands = commands or SlurmCommands()
        self._home = home or slurm_home()
        self._found: dict[str, JobDirectory] = {}
        self._answers: dict[tuple[str, ...], tuple[float, dict[str, ControllerJob]]] = {}
        """The numbers of jobs -> the time and the answer of Slurm's controller."""

    # -- looking

    def jobs(
        self,
        *,
        ended: bool = True,
        attended: bool = True,
        name: str | None = None,
        most: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return all jobs, or the newest `most` jobs, the newest first.

        `name` selects the jobs with this name. Without `ended`, leave out the jobs that have
        recorded their end; without `attended`, those in the queue of a daemon. Other jobs are not
        read: a month has thousands.
        """
        found: Iterable[JobDirectory] = job_directories(self._home)
        if not ended:
            found = (each for each in found if not each.has_ended())
        if not attended:
            found = (each for each in found if not each.is_attended())
        if name is not None:
            found = (each for each in found if (each.job() or {}).get("name") == name)
        return self._views(list(islice(found, most)))

    def jobs_named(self, name: str, *, user: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs with this name, the newest first. `user` is ignored."""
        return self.jobs(name=name)

    def jobs_of(self, references: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the jobs `references`, keyed by them. Slurm's controller is asked once for all.

        Raises BadRequest: a job does not exist.
        """
        known = {each: self.directory(each) for each in references}
        views = self._views(list(known.values()))
        of_path = {view["slurm"]["directory"]: view for view in views}
        return {each: of_path[str(directory.path)] for each, directory in known.items()}

    def clean(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the records of jobs that have ended. Jobs in the queue of a daemon are kept.

        `DaemonClient.clean` has the same request and the same answer.
        """
        everything = job_directories(self._home)
        named = request.get("jobs")
        wanted = everything if named is None else [self.directory(each) for each in named]
        own = [each for each in wanted if not each.is_attended()]
        if named is not None and len(own) < len(wanted):
            raise BadRequest(
                "a daemon has some of these jobs in its queue; name them by the daemon's numbers"
            )
        paths = {str(each.path): each for each in own}
        jobs = [(paths[view["slurm"]["directory"]], view) for view in self._views(own)]
        unfinished = [each for each in everything if not each.has_ended()]
        self._found.clear()
        return clean_jobs(jobs, request, unfinished)

    def job(self, reference: str) -> dict[str, Any]:
        """Return the job `reference`. Raises BadRequest: the job does not exist."""
        return self._views([self.directory(reference)])[0]

    def find(self, reference: str | None) -> dict[str, Any]:
        """Return the job with the number or name `reference`. A number may be written as
        `slurm:NUMBER`.

        If `reference` is None, return the newest job.

        Raises BadRequest: the job does not exist, or several unfinished jobs have the name.
        """
        if reference is None:
            found = self._views(job_directories(self._home)[:1])
            if not found:
                raise BadRequest("no job was submitted to Slurm yet")
            return found[0]
        if reference.startswith(PREFIX) or reference.isdecimal():
            return self.job(reference)
        named = self.jobs_named(reference)
        if not named:
            raise BadRequest(
                f"no job under Slurm has the name {reference!r}; see zerotools queue -a"
            )
        going = [each for each in named if each["state"] not in states.TERMINAL]
        if len(going) > 1:
            numbers = ", ".join(str(each["id"]) for each in reversed(going))
            raise BadRequest(f"{numbers} have the name {reference!r}; give one of these numbers")
        return (going or named)[0]

    def health(self) -> dict[str, Any]:
        """Return an empty mapping, because there is no daemon.

        Without the number of the last event, callers poll the jobs instead of waiting for events.
        """
        return {}

    def directory(self, reference: str) -> JobDirectory:
        """Return the directory of the job `reference`. Raises BadRequest: the job does
        not exist.
        """
        number = reference.removeprefix(PREFIX)
        if (known := self._found.get(number)) is not None:
            return known
        for each in job_directories(self._home):
            self._found |= dict.fromkeys([each.path.name, *self._numbers(each)], each)
        if number in self._found:
            return self._found[number]
        raise BadRequest(
            f"{PREFIX}{number}: no job submitted with --slurm has this number; see zerotools "
            f"queue --all ({self._home})"
        )

    def _numbers(self, directory: JobDirectory) -> Iterable[str]:
        for submission in directory.submissions():
            record = directory.submission(submission) or {}
            if isinstance(record.get("job_id"), str):
                yield record["job_id"]

    def check_output_dir_free(self, spec: JobSpec, *, own: str | None = None) -> None:
        """Refuse the job `spec` if another unfinished job writes into its output directory.

        `own` is the directory of this job's records; None if the job is new.

        Raises:
            BadRequest: the message has the name of the other job.
        """
        if spec.output_dir is None:
            return
        place = os.path.realpath(spec.output_dir)
        there = [
            each
            for each in job_directories(self._home)
            if each.path.name != own and not each.has_ended() and _output_of(each) == place
        ]
        for each in there:
            if (job := self._unfinished(each)) is not None:
                raise BadRequest(
                    f"output_dir = {spec.output_dir}: {job}, writes there; name another directory"
                )

    def claim_output(self, spec: JobSpec, directory: JobDirectory) -> Callable[[], None]:
        """Reserve the output directory of `spec` for the job, if the job file names one.

        Return a function that withdraws the reservation.
        """
        if spec.output_dir is None:
            return lambda: None
        return claim_output(spec.output_dir, directory, self._unfinished)

    def _unfinished(self, directory: JobDirectory) -> str | None:
        """Return the name and the state of the job in a directory, as text.

        Return None if the job has ended or was removed.
        """
        try:
            if not directory.path.exists():
                return None
        except OSError:
            return f"the job of {directory.path}, which cannot be read"
        for view in self._views([directory]):
            if view["state"] in states.TERMINAL:
                return None
            return f"job {view['id']}, which is {states.display_text(view['state'])}"
        created = float((directory.job() or {}).get("created") or 0.0)
        is_coming = time.time() - created < FRESH_SECONDS
        return f"job {directory.path.name}, which is being submitted" if is_coming else None

    def _views(self, directories: Sequence[JobDirectory]) -> list[dict[str, Any]]:
        numbers: dict[Path, str | None] = {}
        silent: str | None = None
        for each in directories:
            submissions = each.submissions()
            if not submissions or each.end(submissions[-1]) is not None:
                known = (each.submission(submissions[-1]) or {}) if submissions else {}
                numbers[each.path] = known.get("job_id")
                continue
            known = each.submission(submissions[-1]) or {}
            numbers[each.path] = known.get("job_id")
            if silent is not None or numbers[each.path] is not None:
                continue
            try:
                numbers[each.path] = find_number(self._commands, each, submissions[-1], tries=1)
            except (SlurmUnreachable, Unsupported, BadRequest) as error:
                silent = str(error)
        listed: dict[str, ControllerJob] = {}
        wanted = [
            number
            for each in directories
            if (number := numbers[each.path]) is not None and not self._is_over(each)
        ]
        if wanted and silent is None:
            try:
                listed = self._listed(tuple(wanted))
            except (SlurmUnreachable, Unsupported, BadRequest) as error:
                silent = str(error)
        return [
            self._view(each, number, own_of(each, listed.get(number or "")), silent)
            for each in directories
            if (number := numbers[each.path]) is not None or each.submissions()
        ]

    def _listed(self, numbers: tuple[str, ...]) -> dict[str, ControllerJob]:
        """Return the jobs of these numbers as the controller lists them, or listed them a few
        seconds ago: a command that follows a job asks several times a second.
        """
        known = self._answers.get(numbers)
        if known is None or not 0 <= time.monotonic() - known[0] < ANSWER_SECONDS:
            known = time.monotonic(), self._commands.jobs(numbers)
            self._answers = {**self._answers, numbers: known} if len(numbers) == 1 else {}
        return known[1]

    @staticmethod
    def _is_over(directory: JobDirectory) -> bool:
        submissions = directory.submissions()
        return bool(submissions) and directory.end(submissions[-1]) is not None

    def _view(
        self,
        directory: JobDirectory,
        number: str | None,
        controller: ControllerJob | None,
        silent: str | None,
    ) -> dict[str, Any]:
        submission = max(directory.submissions())
        written = read_record(directory.path / VIEW)
        own = written if _submission_of(written) == submission else None
        end = directory.end(submission)
        if end is None and number is not None:
            place = directory.submission_path(submission)
            if controller is None and (word := saved_report(place, number)) is not None:
                controller, silent = word, None
            elif controller is None and silent is None:
                controller = own_of(directory, self._commands.accounted(number))
            if controller is not None:
                save_last_report(place, controller)
        record = directory.submission(submission) or {}
        known = Known(
            view=own,
            end=end,
            asked=directory.stop() is not None,
            controller=controller,
            silent=silent,
            quiet_seconds=_quiet_seconds(directory) if own else None,
            submitted_seconds=time.time() - float(record.get("time") or 0.0),
        )
        state, reason = state_and_reason(known)
        try:
            view = dict(
                written if written and written.keys() >= NO_VIEW.keys() else first_view(directory)
            )
        except BadFile as error:  # the other jobs are still shown
            view, reason = {**NO_VIEW, "name": directory.path.name}, str(error)
        view["id"] = f"{PREFIX}{number or directory.path.name}"
        view |= {"state": state, "state_word": states.display_name(state), "reason": reason}
        if state in states.TERMINAL:
            view["phase"] = None
            view["ended"] = view.get("ended") or (end or {}).get("time") or _changed(directory)
        else:
            view["ended"] = None
        view["slurm"] = {
            **(view.get("slurm") or {}),
            "attended": directory.is_attended(),
            "id": number,
            "state": None if controller is None else controller.state,
            "nodes_now": "" if controller is None else controller.node_list,
            "directory": str(directory.path),
            "log": str(directory.submission_path(submission) / LOG),
        }
        return view

    # -- reading

    def logs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        limit: int = 1 << 16,
    ) -> LogBytes:
        """Return a part of a rank's log.

        `DaemonClient.logs` has the same arguments and the same result.
        """
        view, number = self._attempt(job_id, attempt)
        if number is None:
            return LogBytes(b"", 0, 0, view["state"] in states.TERMINAL)
        each = max(1, int((view.get("slurm") or {}).get("ranks_of_node") or 1))
        run_dir = self.directory(job_id).run_dir(number, rank // each)
        data, start, size = _part(run_dir / f"rank-{rank % each}.log", offset, limit)
        over = self._attempt_is_over(view, number) and start + len(data) >= size
        return LogBytes(data, start + len(data), number, over)

    def progress(
        self, job_id: str, *, attempt: int | None = None, since: int = 0
    ) -> dict[str, Any]:
        """Return the progress reports of the ranks.

        `DaemonClient.progress` has the same arguments and the same result.
        """
        view, number = self._attempt(job_id, attempt)
        if number is None:
            over = view["state"] in states.TERMINAL
            return {"records": [], "next": 0, "attempt": 0, "over": over}
        path = self.directory(job_id).run_dir(number, 0) / "progress.jsonl"
        data, start, size = _part(path, since, _LARGEST_PART)
        records: list[dict[str, Any]] = []
        used = 0
        while len(records) < _MOST_RECORDS and (end := data.find(b"\n", used)) >= 0:
            with suppress(ValueError, RecursionError):
                record = json.loads(data[used:end])
                if isinstance(record, dict):
                    records.append(record)
            used = end + 1
        over = self._attempt_is_over(view, number) and start + used >= size
        return {"records": records, "next": start + used, "attempt": number, "over": over}

    def _attempt(self, job_id: str, attempt: int | None) -> tuple[dict[str, Any], int | None]:
        view = self._recorded(self.directory(job_id))
        known = [each["number"] for each in view["attempts"]]
        if attempt is not None and attempt not in known:
            raise BadRequest(
                f"job {view['id']} has no attempt {attempt}; it had {len(known)} so far"
            )
        return view, attempt if attempt is not None else (known[-1] if known else None)

    def _recorded(self, directory: JobDirectory) -> dict[str, Any]:
        """Return the job by its records alone.

        Logs are read for each rank every few seconds, which must not be as many requests to
        Slurm's controller.
        """
        known = directory.submission(max(directory.submissions())) or {}
        return self._view(directory, known.get("job_id"), None, "Slurm was not asked")

    @staticmethod
    def _attempt_is_over(view: Mapping[str, Any], number: int) -> bool:
        found = next(each for each in view["attempts"] if each["number"] == number)
        return found["ended"] is not None or view["state"] in states.TERMINAL

    # -- changing

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Ask a job to save and end, and return the job. A waiting job is removed from Slurm's
        queue.

        Raises BadRequest if the job has ended, and SlurmUnreachable if Slurm does not answer and
        the job may still wait in its queue. Even then the request is recorded, and the job will
        save and end.
        """
        view, directory = self.job(job_id), self.directory(job_id)
        if view["state"] in states.TERMINAL:
            raise BadRequest(
                f"job {view['id']} is over ({states.display_text(view['state'])}), so there is "
                "nothing to cancel"
            )
        directory.request_stop(submitter_name())
        self._answers.clear()
        number = view["slurm"]["id"]
        if number is None:
            raise SlurmUnreachable(
                f"job {view['id']} got the request to end, but Slurm does not answer, so the "
                "job may still be in Slurm's queue; cancel the job again later"
            )
        try:
            found = own_of(directory, self._commands.jobs([number]).get(number))
        except SlurmUnreachable:
            if view["attempts"] and _quiet_seconds(directory) < FRESH_SECONDS:
                return {
                    **view,
                    "state": states.STOPPING,
                }  # its nodes read the request in its directory
            raise SlurmUnreachable(
                f"job {view['id']} got the request to end, but Slurm does not answer, so the "
                "job may still be in Slurm's queue; cancel the job again later"
            ) from None
        if found is not None and found.waits:
            self._commands.cancel(number)
        self._answers.clear()
        return self.job(job_id)

    def resume(
        self, job_id: str, *, nodes: int | None = None, max_nodes: int | None = None
    ) -> dict[str, Any]:
        """Submit a finished job again, so that it continues from its newest checkpoint. Return the
        job. A job that Slurm has put back into its queue starts without Slurm's delay.

        The job gets `nodes` nodes; if `max_nodes` is also set, it gets from `nodes` to `max_nodes`
        nodes. By default it gets the numbers in its job file. Raises BadRequest and
        SlurmUnreachable.
        """
        directory = self.directory(job_id)
        newest = max(directory.submissions(), default=0)
        self._answers.clear()
        view = self.job(job_id)
        spec, number = spec_of(directory), view["slurm"]["id"]
        if view["state"] == states.QUEUED and view["attempts"] and number and nodes is None:
            self._commands.begin_now(number)  # Slurm has queued it again, and waits two minutes
            self._answers.clear()
            return self.job(job_id)
        if view["state"] not in states.TERMINAL:
            raise BadRequest(
                f"job {view['id']} is {states.display_text(view['state'])}, but only a finished "
                "job can be retried; wait until the job has ended"
            )
        if view["state"] == states.SUCCEEDED and spec.engine != "script":
            raise BadRequest(
                f"job {view['id']} has succeeded: all its steps are done; submit its job file "
                "again to run it from the start"
            )
        self.check_output_dir_free(spec, own=directory.path.name)
        if nodes is not None:
            spec = replace(spec, slurm=replace(spec.slurm, nodes=nodes, max_nodes=max_nodes))
            if problems := check_rules(spec)[0]:
                raise BadRequest(f"--nodes {nodes}: {problems[0]}")
        claim = partial(self.claim_output, spec)
        submit_again(self._commands, directory, spec, newest=newest, claim=claim)
        return self._views([directory])[0]


def _submission_of(view: Mapping[str, Any] | None) -> int | None:
    number = ((view or {}).get("slurm") or {}).get("submission")
    return number if type(number) is int else None


def _output_of(directory: JobDirectory) -> str | None:
    """Return the output directory of a job, with symbolic links resolved; None if the job file
    names no output directory or cannot be read.
    """
    spec = (directory.job() or {}).get("spec")
    given = spec.get("output_dir") if isinstance(spec, Mapping) else None
    return os.path.realpath(given) if isinstance(given, str) else None


def _changed(directory: JobDirectory) -> float:
    """Return the time when the job's records last changed, in seconds since the epoch."""
    newest = max(directory.attempts(), default=0)
    places = [directory.path / VIEW, *directory.attempt_path(newest).glob("beat-*")]
    dates = [0.0]
    for each in places:
        with suppress(OSError):
            dates.append(each.stat().st_mtime)
    return max(dates)


def _quiet_seconds(directory: JobDirectory) -> float:
    return max(0.0, time.time() - _changed(directory))


def _part(path: Path, offset: int, limit: int) -> tuple[bytes, int, int]:
    """Return at most `limit` bytes of a file from `offset` on, the offset of the first returned
    byte, and the size of the file. A missing file counts as empty.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(size + offset, 0) if offset < 0 else min(offset, size)
            return os.pread(file.fileno(), limit, start), start, size
    except OSError:
        return b"", 0, 0


def save_last_report(submission: Path, found: ControllerJob) -> None:
    """Save Slurm's report on a job that has ended, because the controller forgets the job after
    some minutes. `submission` is the directory of the submission.
    """
    if found.state not in _FINAL or found.completing:
        return
    word = {"number": found.number, "state": found.state, "reason": found.reason}
    if read_record(submission / ENDED) != word:
        with suppress(OSError):  # a user may be allowed only to read the records
            write_record(submission / ENDED, word)


def saved_report(submission: Path, number: str) -> ControllerJob | None:
    """Return the saved report on Slurm's job `number`; None if no report was saved."""
    word = read_record(submission / ENDED) or {}
    if word.get("number") != number or word.get("state") not in _FINAL:
        return None
    return ControllerJob(
        number=number, state=str(word["state"]), reason=str(word.get("reason") or "")
    )
