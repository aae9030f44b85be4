"""Reads the reports of a job's ranks as curves and checkpoints. Each report is read only once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.job_views.job_curves import history
from zerotools.cli.output.text_charts import SeriesPoints
from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.join_attempt_curves import finite_number, step_of

MOST_PARTS = 600
STEADY = 300
"""A curve is drawn again only when the number of its points has grown by one part in `STEADY`."""


@dataclass(frozen=True, eq=False)
class CurveShape:
    """The values to draw a curve from: `points` (step and value) for a chart, and `means` (averages
    over equal parts of the curve) for a sparkline.
    """

    points: SeriesPoints = field(default_factory=dict)
    means: tuple[float, ...] = ()


NO_SHAPE = CurveShape()


@dataclass(frozen=True)
class CurveSummary:
    """A curve at one moment.

    Attributes:
        first, last, least: the first, the last and the least value; None if there is no point.
        last_step, least_step: the steps of the last and of the least value.
        shape: the points to draw. They may be slightly older than the other fields: the same object
            is kept until a new point changes the drawing, so that the drawing can be cached.
    """

    shape: CurveShape = NO_SHAPE
    first: float | None = None
    last: float | None = None
    last_step: int | None = None
    least: float | None = None
    least_step: int | None = None


@dataclass(slots=True)
class _Part:
    first_step: int
    first: float
    last_step: int
    last: float
    low: float
    low_step: int
    high: float
    sum: float
    count: int

    def join(self, later: _Part) -> None:
        self.last_step, self.last = later.last_step, later.last
        if later.low < self.low:
            self.low, self.low_step = later.low, later.low_step
        self.high = max(self.high, later.high)
        self.sum += later.sum
        self.count += later.count


class LongCurve:
    """A curve with any number of points, kept in a limited number of parts.

    A job of a million steps reports a million losses, but a screen has only a few hundred columns.
    So the steps are kept in parts of equal length, each with its minimum, its maximum and the sum
    of its values. If there are too many parts, each pair of neighbours becomes one part. Points are
    added in the order of their steps. Several threads must not use a curve at once.
    """

    def __init__(self, most: int = MOST_PARTS) -> None:
        self._most = most
        self._length = 1
        self._parts: dict[int, _Part] = {}
        self._count = 0
        self._shape = NO_SHAPE
        self._shaped_at = 0

    def add(self, step: int, value: float) -> None:
        """Add a point. A repeated or earlier step of the last part is ignored. If a job repeats
        steps after a restart, the caller must remove the old points with `cut` before it adds the
        new ones."""
        new = _Part(step, value, step, value, value, step, value, value, 1)
        old = self._parts.setdefault(step // self._length, new)
        if old is not new:
            if step <= old.last_step:
                return
            old.join(new)
        self._count += 1
        while len(self._parts) > self._most:
            self._halve()

    def cut(self, step: int) -> None:
        """Remove the points from `step` on. A part that begins before `step` is kept whole."""
        for place in [place for place in self._parts if place * self._length >= step]:
            del self._parts[place]
            self._shaped_at = -1

    def seen(self) -> CurveSummary:
        """Return the current summary of the curve."""
        if not self._parts:
            return CurveSummary()
        parts = list(self._parts.values())
        if self._shaped_at < 0 or self._count - self._shaped_at > self._count // STEADY:
            self._shape, self._shaped_at = _shape_of(parts), self._count
        least = min(parts, key=lambda part: part.low)
        return CurveSummary(
            shape=self._shape,
            first=parts[0].first,
            last=parts[-1].last,
            last_step=parts[-1].last_step,
            least=least.low,
            least_step=least.low_step,
        )

    def _halve(self) -> None:
        self._length *= 2
        parts, self._parts = self._parts, {}
        for part in parts.values():
            old = self._parts.setdefault(part.first_step // self._length, part)
            if old is not part:
                old.join(part)


def _shape_of(parts: list[_Part]) -> CurveShape:
    points: dict[int, float] = {}
    for part in parts:
        points[part.first_step] = part.first
        if part.count > 3:
            # Between its ends both extremes, at any two steps: they share a column of the screen.
            middle = (part.first_step + part.last_step) // 2
            points[middle] = part.low
            points[middle + 1] = part.high
        elif part.count > 1:
            points[part.low_step] = part.low
        points[part.last_step] = part.last
    return CurveShape(points, tuple(part.sum / part.count for part in parts))


PAGE_RECORDS, PAGE_BYTES = 1000, 1 << 19
"""An answer that is smaller than both limits contains the newest records, so no request follows at
once. The daemon sends at most 1000 records or 1 MiB in one answer.
"""
PAGES_AT_ONCE = 8
"""The number of answers of the daemon that are read before the screen is drawn again."""
WHOLE_BYTES, PARTS = 40 << 20, 40
"""If the reports of an attempt have more than `WHOLE_BYTES` bytes, only `PARTS` evenly spaced parts
and the end are read.
"""
BEHIND_THE_END = 2**62
"""An offset beyond the end of every log. The answer to a request for it has the offset of the end.
"""
MOST_CHECKPOINTS = 64
_OF_STEPS = {
    "loss": "loss",
    "tokens_per_second": "speed",
    "grad_norm": "grad_norm",
    "lr": "rate",
}
"""The values in the report of a step that are kept as curves -> their fields of `JobReports`."""
OLDER_PAGES = 1
"""The job that this job resumes is searched in this number of pages of a thousand jobs each."""


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint as the job reported it.

    `time` is in seconds since 1970. `verified` describes how the checkpoint was verified. If it is
    empty, `not_verified` may have the reason.
    """

    step: int
    path: str
    time: float | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    verified: str | None = None
    not_verified: str | None = None


@dataclass(frozen=True)
class JobReports:
    """The curves of a job by step, and its newest checkpoints, the newest first. `is_whole` is True
    if reading has reached the newest report."""

    loss: CurveSummary = field(default_factory=CurveSummary)
    eval_loss: CurveSummary = field(default_factory=CurveSummary)
    speed: CurveSummary = field(default_factory=CurveSummary)
    """The curve of tokens per second."""
    checkpoints: tuple[ReportedCheckpoint, ...] = ()
    is_whole: bool = True
    grad_norm: CurveSummary = field(default_factory=CurveSummary)
    rate: CurveSummary = field(default_factory=CurveSummary)
    """The curve of the learning rate."""


class ReportReader:
    """Reads the reports of the jobs that a job resumes, and then the reports of the job itself.

    If the reports of an attempt have more than `whole_bytes` bytes, only `parts` evenly spaced
    parts and the end are read.
    """

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
        """The attempts of older jobs that are not read yet, as (job number, attempt number)."""
        self._done = 0
        self._reading: _AttemptLog | None = None
        self._eval = LongCurve()
        self._of_steps = {name: LongCurve() for name in _OF_STEPS}
        self._checkpoints: dict[str, ReportedCheckpoint] = {}

    def read(self, job: Job) -> JobReports:
        """Read the new reports, and return the curves and checkpoints from all reports so far.
        Raises ZerotoolsError.
        """
        is_whole = False
        for _ in range(PAGES_AT_ONCE):
            log = self._next_log(job)
            if log is None or not self._read_page(log):
                is_whole = True
                break
        return JobReports(
            eval_loss=self._eval.seen(),
            checkpoints=tuple(reversed(self._checkpoints.values())),
            is_whole=is_whole,
            **{_OF_STEPS[name]: curve.seen() for name, curve in self._of_steps.items()},
        )

    def _next_log(self, job: Job) -> _AttemptLog | None:
        """Return the attempt to read next: first the attempts of older jobs, then each attempt of
        this job until it ends. Return None if no attempt is left.
        """
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
        """Read the next records. Return False if no records are left for now."""
        records, is_end = log.page()
        for record in records:
            self._add_record(record, log)
        return not is_end or log.is_over

    def _add_record(self, record: Mapping[str, Any], log: _AttemptLog) -> None:
        event, step = record.get("event"), step_of(record)
        if step is None:
            return
        if event in ("step", "eval") and log.begins:
            log.begins = False
            for curve in (self._eval, *self._of_steps.values()):
                curve.cut(step)
        if event == "step":
            for name, curve in self._of_steps.items():
                _add_finite(curve, step, record.get(name))
        elif event == "eval":
            _add_finite(self._eval, step, record.get("loss"))
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
            time=finite_number(record.get("time")),
            size_bytes=_count(record.get("bytes")),
            seconds=finite_number(record.get("seconds")),
            verified=_text_or_none(record.get("verified")),
            not_verified=_text_or_none(record.get("not_verified")),
        )
        if len(self._checkpoints) > MOST_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]


class _AttemptLog:
    """The reports of one attempt, read page by page."""

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
        """Return the next records, and True if no later records exist yet."""
        if not self._offset:
            self._plan()
        before = self._offset
        try:
            answer = self._client.progress(self._job, attempt=self._attempt, since=before)
        except (BadRequest, DaemonRefused):  # the log was removed, or belongs to another user
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
        """Choose the parts to read if the reports are too long to be read whole."""
        try:
            answer = self._client.progress(self._job, attempt=self._attempt, since=BEHIND_THE_END)
        except (BadRequest, DaemonRefused):  # reading the first page will report it
            return
        end = int(answer["next"])
        if end > self._whole_bytes:
            self._stride = end // self._parts
            self._sampled_until = end - self._stride


def _count(value: object) -> int | None:
    """Return `value` if it is a whole number from 0 to 2^63, else None. A user's program may report
    any JSON value.
    """
    return value if type(value) is int and 0 <= value < 2**63 else None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _add_finite(curve: LongCurve, step: int, value: object) -> None:
    if (number := finite_number(value)) is not None:
        curve.add(step, number)
