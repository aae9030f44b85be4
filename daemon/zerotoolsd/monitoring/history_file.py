"""Stores the history of measurements in an SQLite file. The file may be lost, because no job
depends on it.

    bucket   tier, start, layout, data     all series in one time interval: their averages, then
                                           their maxima, as float32, in the order of the names of
                                           `layout`
    layout   id, names                     the names of series as JSON
    peak     job_id, attempt, ...          the peak memory of an attempt: kept forever
    mark     name, value                   the number of the last event of the queue that was read

A bucket of 60 series takes 0.5 KB, and the buckets of a day take 7 MB. A damaged file is renamed
and replaced. A full file loses its oldest buckets; peaks take about 50 bytes per attempt and are
kept.

A bucket has the average and the maximum of each series, because a peak of a second can end a job.
Coarse buckets are made from finer buckets in the file, so nothing is lost if the daemon is killed
in between:

    second     60  61  62 ...  69        one row each, kept for an hour
    10 s       60 ------------ 69        average of the averages, maximum of the maxima; kept for
                                         a day
    60 s       60 ---------------- 119   made from the rows of 10 s; kept for 30 days
    10 min                               made from the rows of 60 s; kept for a year
"""

from __future__ import annotations

import json
import math
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

FILE = "history.sqlite3"
DAMAGED = "history.damaged.sqlite3"
_BESIDE = ("", "-wal", "-shm")
_THINNED = 4
"""A full file loses its oldest buckets: one of this many parts, such as a quarter."""
AHEAD_SECONDS = 60
"""Buckets that are later than now by more than this were written with a wrong clock."""
LATEST = 1 << 62
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS layout (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS bucket (
        tier INTEGER NOT NULL, start INTEGER NOT NULL, layout INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (tier, start)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS peak (
        job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, uid INTEGER, name TEXT, ended REAL,
        host_bytes INTEGER, gpu_bytes INTEGER, gpu_reported_bytes INTEGER,
        PRIMARY KEY (job_id, attempt)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class AttemptPeak:
    """The peak memory of one attempt of a job, in bytes (None: unknown).

    Attributes:
        host_bytes: the resident memory of all processes of the attempt.
        gpu_bytes: the peak on one GPU in samples of the driver (with the CUDA context).
        gpu_reported_bytes: the peak that the allocator of the ranks reported.
        ended: the end of the attempt, in seconds since the epoch; None while the attempt runs.
    """

    job_id: int
    attempt: int
    uid: int | None = None
    name: str | None = None
    ended: float | None = None
    host_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_reported_bytes: int | None = None

    def with_more(self, other: AttemptPeak) -> AttemptPeak:
        """Return a copy of `self` with the larger number of bytes of `self` and `other` in each
        field.

        A field without a value in `self` gets the value of `other`.
        """
        merged = {
            each.name: _larger(each.name, getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
        }
        return replace(self, **merged)

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values."""
        return asdict(self)


def _larger(name: str, mine: Any, its: Any) -> Any:
    if mine is None or its is None:
        return its if mine is None else mine
    return max(mine, its) if name.endswith("_bytes") else mine


class HistoryFile:
    """The history file in `directory`, of at most `most_bytes`.

    Raises sqlite3.Error if the file cannot be opened even after a damaged file was renamed.
    """

    def __init__(self, directory: Path, most_bytes: int = 64 << 20) -> None:
        self.path = directory / FILE
        self.was_damaged: str | None = None
        """The reason that the previous file was set aside."""
        try:
            self._db = _opened(self.path, most_bytes)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.was_damaged = str(error)
            set_aside(directory)
            self._db = _opened(self.path, most_bytes)
        self._layouts: dict[int, tuple[str, ...]] = {}

    def close(self) -> None:
        """Close the history file."""
        self._db.close()

    def add(
        self, buckets: Iterable[Bucket], peaks: Iterable[AttemptPeak], seen: int | None = None
    ) -> None:
        """Add buckets of one second and peaks of attempts in one transaction.

        `seen` is the number of the last event of the queue that was read. It is stored in the same
        transaction. A full file loses its oldest buckets first. Raises sqlite3.Error.
        """
        buckets, peaks = list(buckets), list(peaks)
        try:
            self._add(buckets, peaks, seen)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            self._thin_out()
            self._add(buckets, peaks, seen)

    def _add(
        self, buckets: Sequence[Bucket], peaks: Sequence[AttemptPeak], seen: int | None
    ) -> None:
        with self._transaction():
            for bucket in buckets:
                self._put(0, bucket)
            for peak in peaks:
                known = self.peak(peak.job_id, peak.attempt)
                self._put_peak(peak if known is None else peak.with_more(known))
            if seen is not None:
                self._db.execute("INSERT OR REPLACE INTO mark VALUES ('seen', ?)", (seen,))

    def roll_up(
        self, now: float, removal_time: float | None = None, *, is_sure: bool = True
    ) -> None:
        """Make the coarse buckets that are complete at time `now`; delete buckets that are too old
        for their tier at `removal_time` (default: `now`).

        `is_sure` is False if the clock may be wrong: then no bucket counts as later than now.
        Raises sqlite3.Error.
        """
        with self._transaction():
            for finer, tier in enumerate(TIERS[1:]):
                end = int(now) // tier.step_seconds * tier.step_seconds
                begin = self._newest(finer + 1, end)
                begin = 0 if begin is None else begin + tier.step_seconds
                for bucket in rolled_up(self._buckets(finer, begin, end), tier.step_seconds):
                    self._put(finer + 1, bucket)
            removal_time = now if removal_time is None else removal_time
            latest = int(now) + AHEAD_SECONDS if is_sure else LATEST
            for number, tier in enumerate(TIERS):
                self._db.execute(
                    "DELETE FROM bucket WHERE tier = ? AND (start < ? OR start > ?)",
                    (number, int(removal_time) - tier.span_seconds, latest),
                )
            self._db.execute("DELETE FROM layout WHERE id NOT IN (SELECT layout FROM bucket)")
            self._layouts.clear()

    def buckets(self, tier: int, begin: float, end: float) -> list[Bucket]:
        """Return the buckets of tier number `tier` that start in [begin, end), in order of time.
        Raises sqlite3.Error.
        """
        return list(self._buckets(tier, begin, end))

    def peak(self, job_id: int, attempt: int) -> AttemptPeak | None:
        """Return the stored peak memory of one attempt; None if there is no record.

        Raises sqlite3.Error.
        """
        found = self._peaks("WHERE job_id = ? AND attempt = ?", (job_id, attempt))
        return next(found, None)

    def peaks(self, job_id: int | None, limit: int) -> list[AttemptPeak]:
        """Return the peak memory of attempts of job `job_id` (None: of all jobs), at most `limit`,
        the newest first.

        Raises sqlite3.Error.
        """
        of, values = ("", ()) if job_id is None else ("WHERE job_id = ?", (job_id,))
        order = f"{of} ORDER BY job_id DESC, attempt DESC LIMIT ?"
        return list(self._peaks(order, (*values, limit)))

    @property
    def last_event(self) -> int:
        """The number of the newest event of the queue that was read. Raises sqlite3.Error."""
        row = self._db.execute("SELECT value FROM mark WHERE name = 'seen'").fetchone()
        return 0 if row is None else int(row[0])

    def _peaks(self, which: str, values: Sequence[object]) -> Iterator[AttemptPeak]:
        names = [each.name for each in fields(AttemptPeak)]
        for row in self._db.execute(f"SELECT {', '.join(names)} FROM peak {which}", values):
            yield AttemptPeak(**dict(zip(names, row, strict=True)))

    def _put_peak(self, peak: AttemptPeak) -> None:
        values = tuple(asdict(peak).values())
        marks = ", ".join("?" * len(values))
        names = ", ".join(asdict(peak))
        self._db.execute(f"INSERT OR REPLACE INTO peak ({names}) VALUES ({marks})", values)

    def _put(self, tier: int, bucket: Bucket) -> None:
        names = tuple(sorted(bucket.series))
        ranges = [bucket.series[name] for name in names]
        data = array("f", [each.mean for each in ranges] + [each.most for each in ranges])
        self._db.execute(
            "INSERT OR REPLACE INTO bucket VALUES (?, ?, ?, ?)",
            (tier, bucket.start, self._layout(names), data.tobytes()),
        )

    def _layout(self, names: Sequence[str]) -> int:
        text = json.dumps(names)
        row = self._db.execute("SELECT id FROM layout WHERE names = ?", (text,)).fetchone()
        if row is not None:
            return int(row[0])
        return self._db.execute("INSERT INTO layout (names) VALUES (?)", (text,)).lastrowid or 0

    def _names(self, layout: int) -> tuple[str, ...]:
        if layout not in self._layouts:
            found = self._db.execute("SELECT names FROM layout WHERE id = ?", (layout,)).fetchone()
            self._layouts[layout] = () if found is None else tuple(json.loads(found[0]))
        return self._layouts[layout]

    def _buckets(self, tier: int, begin: float, end: float) -> Iterator[Bucket]:
        rows = self._db.execute(
            "SELECT start, layout, data FROM bucket WHERE tier = ? AND start >= ? AND start < ?"
            " ORDER BY start",
            (tier, begin, end),
        )
        for start, layout, data in rows.fetchall():
            yield Bucket(start, _ranges(self._names(layout), data))

    def _newest(self, tier: int, before: int) -> int | None:
        row = self._db.execute(
            "SELECT max(start) FROM bucket WHERE tier = ? AND start < ?", (tier, before)
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def _thin_out(self) -> None:
        with self._transaction():
            for number in range(len(TIERS)):
                self._db.execute(
                    "DELETE FROM bucket WHERE tier = ? AND start < (SELECT start FROM bucket"
                    " WHERE tier = ? ORDER BY start LIMIT 1 OFFSET"
                    f" (SELECT count(*) / {_THINNED} FROM bucket WHERE tier = ?))",
                    (number, number, number),
                )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:  # undone, and raised again
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._layouts.clear()
            raise


def is_damage(error: BaseException) -> bool:
    """Return whether the SQLite error `error` means that the file is damaged. An unreachable or
    full file is not damaged.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, sqlite3.DatabaseError) and code in damage


def set_aside(directory: Path) -> None:
    """Rename the damaged history file in `directory`. It replaces a file that was renamed earlier.

    Raises OSError.
    """
    for end in _BESIDE:
        (directory / f"{DAMAGED}{end}").unlink(missing_ok=True)
        found = directory / f"{FILE}{end}"
        if found.exists():
            found.rename(directory / f"{DAMAGED}{end}")


def _opened(path: Path, most_bytes: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=0.5)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        checked = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if checked != "ok":
            raise sqlite3.DatabaseError(f"{path.name}: {checked}")
        db.executescript(_SCHEMA)
        page = int(db.execute("PRAGMA page_size").fetchone()[0])
        db.execute(f"PRAGMA max_page_count={max(64, most_bytes // page)}")
        db.execute(f"PRAGMA journal_size_limit={4 << 20}")
        db.execute("SELECT tier, start, layout, data FROM bucket LIMIT 1")
        db.execute("SELECT job_id, gpu_reported_bytes FROM peak LIMIT 1")
    except BaseException:  # undone, and raised again
        db.close()
        raise
    return db


def _ranges(names: Sequence[str], data: bytes) -> Mapping[str, MeanAndMost]:
    numbers = array("f")
    if len(data) != 2 * len(names) * numbers.itemsize:
        return {}
    numbers.frombytes(data)
    half = len(names)
    return {name: MeanAndMost(numbers[n], numbers[half + n]) for n, name in enumerate(names)}


HOUR, DAY = 3600, 86400


@dataclass(frozen=True)
class Tier:
    """A resolution of the history: buckets of `step_seconds` each, kept for `span_seconds`."""

    step_seconds: int
    span_seconds: int


TIERS = (Tier(1, HOUR), Tier(10, DAY), Tier(60, 30 * DAY), Tier(600, 365 * DAY))


@dataclass(frozen=True, slots=True)
class MeanAndMost:
    """The average and the maximum of one series within one bucket."""

    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The measurements of one time interval, keyed by the name of the series.

    The interval begins at `start`, in whole seconds since the epoch.
    """

    start: int
    series: Mapping[str, MeanAndMost]


def bucket_of(time: float, series: Mapping[str, float]) -> Bucket:
    """Return the values of one sample as a bucket of one second.

    NaN and infinite values are left out.
    """
    known = {name: value for name, value in series.items() if math.isfinite(value)}
    return Bucket(int(time), {name: MeanAndMost(value, value) for name, value in known.items()})


def combined_bucket(start: int, buckets: Sequence[Bucket]) -> Bucket:
    """Return one bucket for the interval of all `buckets`.

    A series that is missing in some buckets is computed from the other buckets.
    """
    found: dict[str, list[MeanAndMost]] = {}
    for bucket in buckets:
        for name, each in bucket.series.items():
            found.setdefault(name, []).append(each)
    ranges = {
        name: MeanAndMost(sum(r.mean for r in parts) / len(parts), max(r.most for r in parts))
        for name, parts in found.items()
    }
    return Bucket(start, ranges)


def rolled_up(buckets: Iterable[Bucket], step_seconds: int) -> list[Bucket]:
    """Combine `buckets`, in order of time, into buckets of `step_seconds` each."""
    grouped = groupby(buckets, lambda bucket: bucket.start // step_seconds * step_seconds)
    return [combined_bucket(start, list(parts)) for start, parts in grouped]


def tier_for(span_seconds: float, most_points: int) -> int:
    """Return the number of the coarsest tier that can show the last `span_seconds` with
    `most_points` points.

    Such a tier keeps its buckets for `span_seconds`, and has at least `most_points` buckets in that
    time. If no tier has enough buckets, return the finest tier that keeps its buckets for
    `span_seconds`.
    """
    reach = [n for n, tier in enumerate(TIERS) if span_seconds <= tier.span_seconds]
    enough = [n for n in reach if TIERS[n].step_seconds * most_points <= span_seconds]
    return enough[-1] if enough else reach[0] if reach else len(TIERS) - 1


def step_for(tier: Tier, span_seconds: float, most_points: int) -> int:
    """Return the length of a combined bucket in seconds, so that a result for `span_seconds` has at
    most `most_points` buckets.

    The length is a multiple of the tier's step.
    """
    return tier.step_seconds * max(1, math.ceil(span_seconds / tier.step_seconds / most_points))
