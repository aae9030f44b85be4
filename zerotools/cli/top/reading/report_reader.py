"""The reports of a job's ranks, polled: each time only new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.cli.job_views.curves import history
from zerotools.cli.job_views.describe import Job
from zerotools.cli.top.reading.long_curve import CurveSeen, LongCurve
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.step_curves import finite, step_of

PAGE_RECORDS, PAGE_BYTES = 1000, 1 << 19
"""An answer with fewer of both is the last one for now: the daemon sends a thousand records, or 1
MiB."""
PAGES_AT_ONCE = 8
"""The part of a long log that is read before the screen is drawn again."""
WHOLE_BYTES, PARTS = 40 << 20, 40
"""Of a log longer than `WHOLE_BYTES`, `PARTS` parts are read, evenly spread, and its end."""
BEHIND_THE_END = 2**62
"""A request from this position returns the end of the log."""
MOST_CHECKPOINTS = 64
OLDER_PAGES = 1
"""The most pages of a thousand jobs to search for the job that this one continues."""


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint as its job reported it. `time` is seconds since 1970; `verified` describes the
    verification, and is None if `not_verified` may have the reason."""

    step: int
    path: str
    time: float | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    verified: str | None = None
    not_verified: str | None = None


@dataclass(frozen=True)
class Reported:
    """Curves by step, and the newest checkpoints, the newest first. `is_whole`: all that there is
    was read."""

    loss: CurveSeen = field(default_factory=CurveSeen)
    eval_loss: CurveSeen = field(default_factory=CurveSeen)
    speed: CurveSeen = field(default_factory=CurveSeen)
    """Tokens per second."""
    checkpoints: tuple[ReportedCheckpoint, ...] = ()
    is_whole: bool = True


class ReportReader:
    """Reads one job, including the attempts of the jobs that it continues. Of a log longer than
    `whole_bytes` only `parts` parts are read."""

    def __init__(
        self,
        client: DaemonClient,
        job_id: int,
        *,
        whole_bytes: int = WHOLE_BYTES,
        parts: int = PARTS,
    ) -> None:
        self._client = client
        self._id = job_id
        self._bounds = whole_bytes, parts
        self._older: list[tuple[int, int]] | None = None
        """Attempts of older jobs not read yet: number of the job, of the attempt."""
        self._done = 0
        self._reading: _AttemptLog | None = None
        self._loss, self._eval, self._speed = LongCurve(), LongCurve(), LongCurve()
        self._checkpoints: dict[str, ReportedCheckpoint] = {}

    def read(self, job: Job) -> Reported:
        """Return the reports so far. Raises ZerotoolsError."""
        is_whole = False
        for _ in range(PAGES_AT_ONCE):
            log = self._next_log(job)
            if log is None or not self._read_page(log):
                is_whole = True
                break
        return Reported(
            self._loss.seen(),
            self._eval.seen(),
            self._speed.seen(),
            tuple(reversed(self._checkpoints.values())),
            is_whole,
        )

    def _next_log(self, job: Job) -> _AttemptLog | None:
        """Return the log that is read now: one after another, and the newest again and again."""
        if self._older is None:
            chain = history(self._client, job, pages=OLDER_PAGES)[:-1]
            self._older = [(j["id"], each["number"]) for j in chain for each in j["attempts"]]
        if self._reading is not None and not self._reading.is_over:
            return self._reading
        if self._older:
            self._reading = _AttemptLog(self._client, *self._older.pop(0), *self._bounds)
            return self._reading
        number = next((a["number"] for a in job["attempts"] if a["number"] > self._done), None)
        if number is not None:
            self._done = number
            self._reading = _AttemptLog(self._client, self._id, number, *self._bounds)
            return self._reading
        return None

    def _read_page(self, log: _AttemptLog) -> bool:
        """Read the next records; return False at the end of those written so far."""
        records, is_end = log.page()
        for record in records:
            self._take(record, log)
        return not is_end or log.is_over

    def _take(self, record: Mapping[str, Any], log: _AttemptLog) -> None:
        event, step = record.get("event"), step_of(record)
        if step is None:
            return
        if event in ("step", "eval") and log.begins:
            log.begins = False
            for curve in (self._loss, self._eval, self._speed):
                curve.cut(step)
        if event == "step":
            _put(self._loss, step, record.get("loss"))
            _put(self._speed, step, record.get("tokens_per_second"))
        elif event == "eval":
            _put(self._eval, step, record.get("loss"))
        elif event == "checkpoint":
            self._save(step, record)

    def _save(self, step: int, record: Mapping[str, Any]) -> None:
        path = record.get("path")
        if not isinstance(path, str):
            return
        self._checkpoints.pop(path, None)
        self._checkpoints[path] = ReportedCheckpoint(
            step=step,
            path=path,
            time=finite(record.get("time")),
            size_bytes=_count(record.get("bytes")),
            seconds=finite(record.get("seconds")),
            verified=_words(record.get("verified")),
            not_verified=_words(record.get("not_verified")),
        )
        if len(self._checkpoints) > MOST_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]


class _AttemptLog:
    """The records of one attempt, page by page."""

    def __init__(
        self, client: DaemonClient, job_id: int, attempt: int, whole_bytes: int, parts: int
    ) -> None:
        self._client = client
        self._whole_bytes = whole_bytes
        self._parts = parts
        self._job = job_id
        self._attempt = attempt
        self._offset = 0
        self._stride = 0
        self._sampled_until = 0
        self.is_over = False
        self.begins = True

    def page(self) -> tuple[list[Mapping[str, Any]], bool]:
        """Return the next records, and whether these are the last for now."""
        if not self._offset:
            self._plan()
        before = self._offset
        try:
            answer = self._client.progress(self._job, attempt=self._attempt, since=before)
        except (BadRequest, DaemonRefused):  # it was removed, or is of another user's job
            self.is_over = True
            return [], True
        self._offset = int(answer["next"])
        self.is_over = bool(answer["over"])
        records: list[Mapping[str, Any]] = [
            record for record in answer["records"] if isinstance(record, dict)
        ]
        is_end = len(records) < PAGE_RECORDS and self._offset - before < PAGE_BYTES
        if self._offset < self._sampled_until:
            self._offset = max(self._offset, before + self._stride)
            is_end = False
        return records, is_end

    def _plan(self) -> None:
        """Choose the parts to read of a log that is too long to be read whole."""
        try:
            answer = self._client.progress(self._job, attempt=self._attempt, since=BEHIND_THE_END)
        except (BadRequest, DaemonRefused):  # the first page reports it again
            return
        end = int(answer["next"])
        if end > self._whole_bytes:
            self._stride = end // self._parts
            self._sampled_until = end - self._stride


def _count(value: object) -> int | None:
    """Return a count, or None: a job's values may be of any type."""
    return value if type(value) is int and 0 <= value < 2**63 else None


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _put(curve: LongCurve, step: int, value: object) -> None:
    if (number := finite(value)) is not None:
        curve.put(step, number)
