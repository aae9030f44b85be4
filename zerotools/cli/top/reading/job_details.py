"""Reads details of the chosen job: its reports, its checkpoints, and its log."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zerotools.cli.job_views.describe_job import Job, title
from zerotools.cli.top.reading.cached_value import CachedValue
from zerotools.cli.top.reading.disk_reader import CheckpointDirectory, DiskReader
from zerotools.cli.top.reading.job_reports import JobReports, ReportedCheckpoint, ReportReader
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.join_attempt_curves import finite_number

LOG_BYTES = 1 << 13
REMEMBERED = 8
PLACES_SECONDS = 10.0


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint as the job reported it, and its directory. `seen` is None if the directory could
    not be read, or if the job is on another machine.
    """

    reported: ReportedCheckpoint
    seen: CheckpointDirectory | None

    @property
    def time(self) -> float | None:
        """The time at which the checkpoint was saved, in seconds since 1970."""
        said = self.reported.time
        return said if said is not None else self.seen.time if self.seen else None


@dataclass(frozen=True)
class JobDetails:
    """The details of one job. `checkpoints` are the checkpoints that exist, the newest first. If
    something could not be read, `trouble` is the reason.
    """

    job_id: int
    reported: JobReports = field(default_factory=JobReports)
    log: tuple[str, ...] = ()
    checkpoints: tuple[KeptCheckpoint, ...] = ()
    trouble: str = ""


class JobDetailsReader:
    """Reads the details of one job at a time, and keeps the reports of the last few jobs in memory.
    `places` reads checkpoint directories; it is None if the jobs are on another machine."""

    def __init__(
        self, client: DaemonClient, places: DiskReader | None, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._places = places
        self._readers: dict[int, ReportReader] = {}
        self._there: CachedValue[list[CheckpointDirectory | None] | None] = CachedValue(
            PLACES_SECONDS, clock
        )

    def read(self, job: Job) -> JobDetails:
        """Return the current details of the job."""
        number = int(job["id"])
        if job.get("masked"):
            trouble = "only the job's owner and administrators see the rest"
            return JobDetails(number, trouble=trouble)
        reader = self._readers.pop(number, None) or ReportReader(self._client, number)
        self._readers[number] = reader
        if len(self._readers) > REMEMBERED:
            del self._readers[next(iter(self._readers))]
        try:
            reported = reader.read(job)
            log = self._tail(job)
        except ZerotoolsError as error:
            return JobDetails(number, trouble=str(error))
        return JobDetails(number, reported, log, self._checkpoints(job, reported))

    def _tail(self, job: Job) -> tuple[str, ...]:
        if not job["attempt"]:
            return ()
        data = self._client.logs(job["id"], offset=-LOG_BYTES, limit=LOG_BYTES).data
        return tuple(log_lines(data))

    def _checkpoints(self, job: Job, reported: JobReports) -> tuple[KeptCheckpoint, ...]:
        known = {each.path: each for each in reported.checkpoints}
        if (newest := newest_checkpoint(job)) is not None and newest.path not in known:
            known = {newest.path: newest, **known}
        seen = self._seen(list(known)) or [None] * len(known)
        looked = any(seen)
        return tuple(
            KeptCheckpoint(each, directory)
            for each, directory in zip(known.values(), seen, strict=True)
            if directory is not None or not looked
        )

    def _seen(self, paths: list[str]) -> list[CheckpointDirectory | None] | None:
        places = self._places
        return None if places is None else self._there.get(lambda: places.saved(paths), paths)


def newest_checkpoint(job: Job) -> ReportedCheckpoint | None:
    """Return the newest checkpoint that the daemon has recorded for the job. Return None if it has
    recorded no checkpoint.
    """
    found = job["latest_checkpoint"] or {}
    step, path, verified = found.get("step"), found.get("path"), found.get("verified") or {}
    if type(step) is not int or not isinstance(path, str):
        return None
    how, why = verified.get("how"), found.get("not_verified")
    return ReportedCheckpoint(
        step=step,
        path=path,
        time=finite_number(verified.get("time")),
        verified=str(how) if how else None,
        not_verified=str(why) if why else None,
    )


def log_lines(data: bytes) -> list[str]:
    """Return the lines of a log that are not empty. Each redraw of a progress bar is a line."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    return [line.expandtabs() for line in text.split("\n") if line.strip()]


FIRST_BYTES, PART_BYTES = 1 << 16, 1 << 20
MOST_LINES = 5000
LONGEST_LINE = 4096


@dataclass(frozen=True)
class LogLines:
    """The last lines of a log. `dropped` is the number of earlier lines that are not kept."""

    job_id: int
    rank: int
    title: str
    lines: tuple[str, ...] = ()
    dropped: int = 0


class LogFollower:
    """Reads the log of one rank of a job as it grows. When another attempt begins, the log of that
    attempt is read.
    """

    def __init__(self, client: DaemonClient, job: Job, rank: int) -> None:
        self._client = client
        self._job = job
        self._rank = rank
        self._attempt = 0
        self._offset: int | None = None
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._count = 0
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read(self) -> LogLines:
        """Read the new part of the log, and return its last lines. Raises ZerotoolsError."""
        while True:
            offset = -FIRST_BYTES if self._offset is None else self._offset
            part = self._client.logs(
                self._job["id"], rank=self._rank, offset=offset, limit=PART_BYTES
            )
            if part.attempt != self._attempt:
                another = self._attempt > 0
                self._attempt, self._offset, self._rest = part.attempt, None, ""
                if another:
                    self._add(f"--- attempt {part.attempt} ---")
                    continue
            self._offset = part.next_offset
            self._add_text(self._decode(part.data))
            if len(part.data) < PART_BYTES:
                return self._seen()

    def _add_text(self, text: str) -> None:
        """Add new text to the lines. Each redraw of a progress bar becomes a line. A last line
        without a line break is included.
        """
        *whole, self._rest = (self._rest + text.replace("\r\n", "\n").replace("\r", "\n")).split(
            "\n"
        )
        for line in whole:
            if line.strip():
                self._add(line)
        self._rest = self._rest[:LONGEST_LINE]

    def _add(self, line: str) -> None:
        self._lines.append(line.expandtabs()[:LONGEST_LINE])
        self._count += 1

    def _seen(self) -> LogLines:
        lines = (*self._lines, *([self._rest] if self._rest.strip() else ()))
        name = f"log of {title(self._job)}, rank {self._rank}"
        name += f", attempt {self._attempt}" if self._attempt > 1 else ""
        return LogLines(self._job["id"], self._rank, name, lines, self._count - len(self._lines))
