"""The curves of a job and of the jobs that it continues, as columns with a limited number of
points.

If there are more steps than points, they are divided into buckets of neighbouring steps. From each
bucket, the steps with the smallest and the largest loss are kept. So the drawing has all peaks, and
every point is a reported step (the min-max decimation of time series).

    8 steps, at most 6 points:  2.0 1.9 1.8 9.0 | 1.7 1.6 1.5 1.4
    two buckets:                        1.8 9.0 | 1.7         1.4    and the first step, 2.0

The steps come from `progress.jsonl` of each attempt, which has a line for each step. If there are
very many steps, only every n-th line is parsed. Of a very large file, only blocks at equal
distances are read. Evaluations and checkpoints are few, so every report of one in the lines that
are read is used. A job can also write into its run directory, so lines that are no JSON objects are
ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerotools.jobs.join_attempt_curves import (
    OF_EVALUATIONS,
    OF_STEPS,
    CurvePoints,
    Curves,
    finite_number,
    step_of,
)
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.durable_files import open_regular
from zerotoolsd.users.open_as_user import opened_run_directory

MOST_STATEMENTS = 2000
_LONGEST = 4096


@dataclass(frozen=True, kw_only=True)
class CurvePart:
    """An attempt in the curves of a job. It reported the steps from `first_step` to the first step
    of the next part.
    """

    job: int
    attempt: int
    first_step: int
    world_size: int | None


@dataclass(frozen=True, kw_only=True)
class CheckpointStatement:
    """A report of an attempt that it saved a checkpoint, at `time` in seconds since 1970."""

    step: int
    path: str
    time: float | None
    size_bytes: int | None
    seconds: float | None
    verified: str | None
    not_verified: str | None


@dataclass
class RunCurves:
    """The curves of a job, built from its attempts one after another, the oldest first.

    `follow` says where to read later reports: in which attempt, and from which offset of its file.
    """

    curves: Curves = field(default_factory=Curves)
    parts: list[CurvePart] = field(default_factory=list)
    checkpoints: dict[str, CheckpointStatement] = field(default_factory=dict)
    sampled: bool = False
    follow: tuple[int, int] | None = None

    def add(self, job: int, attempt: int, world_size: int | None, found: StepRecords) -> None:
        """Add the reports `found` of one attempt of job `job`."""
        self.curves.add_reports(found.records)
        told = (each for each in found.records if each.get("event") in ("step", "eval"))
        first = min((step for each in told if (step := step_of(each)) is not None), default=None)
        if first is not None:
            self.parts = [part for part in self.parts if part.first_step < first]
            self.parts.append(
                CurvePart(job=job, attempt=attempt, first_step=first, world_size=world_size)
            )
        for each in found.records:
            if (said := statement_of(each)) and len(self.checkpoints) < MOST_STATEMENTS:
                self.checkpoints[said.path] = said
        self.sampled |= found.sampled
        self.follow = attempt, found.end

    def add_scores(self, found: StepRecords) -> None:
        """Add the scores that an attempt of an evaluation job reported."""
        self.curves.add_scores(found.records)

    def to_json(self, points: int) -> dict[str, Any]:
        """Return the columns as JSON values, with at most `points` points. A value is null if a
        step did not report it.
        """
        curves = self.curves
        chosen = chosen_steps(curves.loss, points) or chosen_steps(curves.time, points)
        evaluated = chosen_steps(curves.eval_loss, points) or chosen_steps(curves.bleu, points)
        dropped = len(chosen) < max(len(curves.loss), len(curves.time.keys() - curves.not_finite))
        return {
            "steps": curve_columns(curves, chosen, OF_STEPS),
            "evaluations": curve_columns(curves, evaluated, OF_EVALUATIONS),
            "scores": score_columns(curves, points),
            "not_finite": sorted(curves.not_finite)[:points],
            "parts": [asdict(part) for part in self.parts],
            "checkpoints": [asdict(each) for each in self.checkpoints.values()],
            "sampled": self.sampled or dropped,
            "follow": None
            if self.follow is None
            else {"attempt": self.follow[0], "since": self.follow[1]},
        }


def statement_of(record: Mapping[str, Any]) -> CheckpointStatement | None:
    """Return the saved checkpoint that `record`, a message, reports; None for other messages."""
    path, step = record.get("path"), step_of(record)
    if record.get("event") != "checkpoint" or step is None or not isinstance(path, str):
        return None
    size = record.get("bytes")
    return CheckpointStatement(
        step=step,
        path=path[:_LONGEST],
        time=finite_number(record.get("time")),
        size_bytes=size if type(size) is int and 0 <= size < 2**63 else None,
        seconds=finite_number(record.get("seconds")),
        verified=_text(record.get("verified")),
        not_verified=_text(record.get("not_verified")),
    )


def _text(value: object) -> str | None:
    return value[:_LONGEST] if isinstance(value, str) else None


def chosen_steps(points: CurvePoints, most: int) -> list[int]:
    """Choose at most `most` of the steps in `points`, and return their numbers in ascending order.

    These are the steps with the least and the greatest value of each bucket, and the first and the
    last step.
    """
    steps = sorted(points)
    if len(steps) <= most:
        return steps
    buckets = max(1, (most - 2) // 2)
    kept = {steps[0], steps[-1]} if most > 1 else {steps[-1]}
    for number in range(buckets if most > 3 else 0):
        bucket = steps[number * len(steps) // buckets : (number + 1) * len(steps) // buckets]
        kept |= {min(bucket, key=points.__getitem__), max(bucket, key=points.__getitem__)}
    return sorted(kept)


def curve_columns(
    curves: Curves, steps: Sequence[int], names: Iterable[str]
) -> dict[str, list[Any]]:
    """Return a dict with a column for `step` and for each of `names`. A column has the values at
    the steps in `steps`.

    A column without any values is left out.
    """
    found = {name: [getattr(curves, name).get(step) for step in steps] for name in names}
    kept = {name: values for name, values in found.items() if any(v is not None for v in values)}
    return {"step": list(steps), **kept}


def score_columns(curves: Curves, points: int) -> dict[str, list[Any]]:
    """Return `step`, `time` and the scores of the newest `points` steps, as columns by name."""
    steps = sorted({step for values in curves.scores.values() for step in values})[-points:]
    known = {name: at for name, at in curves.scores.items() if at}
    named = {**known, **({"time": curves.score_time} if steps else {})}
    return {"step": steps, **{name: [at.get(step) for step in steps] for name, at in named.items()}}


def read_run(
    attempts: Sequence[tuple[int, int, int | None, Path]], evaluations: Iterable[Path] = ()
) -> RunCurves:
    """Return the curves of the `attempts`, which are ordered from the oldest to the newest.

    Each attempt is (job, number, world size, run directory). `evaluations` are the run directories
    of the jobs that evaluate the checkpoints of these attempts.
    """
    run = RunCurves()
    for job, number, world_size, run_dir in attempts:
        run.add(job, number, world_size, read_records(run_dir))
    for run_dir in evaluations:
        run.add_scores(read_records(run_dir))
    return run


MOST_STEPS = 20_000
MOST_OTHERS = 20_000
"""The approximate largest number of messages, other than steps, that are parsed."""
MOST_BYTES = 64 << 20
BLOCK = 1 << 18
_STEP = b'"event": "step"'
"""The text that marks the line of a step, as the supervisor writes it.

Lines without it are parsed as other messages.
"""


@dataclass(frozen=True)
class StepRecords:
    """The messages of one attempt in their order.

    `end` is the offset after the last complete line of the file. `sampled` is True if some steps
    were left out.
    """

    records: list[dict[str, Any]]
    end: int = 0
    sampled: bool = False


def read_records(run_dir: Path) -> StepRecords:
    """Return the reports of the attempt in `run_dir`; empty if its progress file cannot be read."""
    try:
        with (
            opened_run_directory(run_dir) as base,
            os.fdopen(open_regular(base / PROGRESS), "rb") as file,
        ):
            return _read(file.fileno())
    except (OSError, ValueError):  # not there yet, or the job has put something else there
        return StepRecords([])


def _read(descriptor: int) -> StepRecords:
    size = os.fstat(descriptor).st_size
    first = os.pread(descriptor, BLOCK, 0)
    lines = size * (first.count(b"\n") or 1) // max(1, len(first))
    stride = max(1, -(-lines // MOST_STEPS))
    records: list[dict[str, Any]] = []
    number = others = end = 0
    newest = b""
    for line, behind in _lines(descriptor, size):
        end = behind
        is_step = _STEP in line
        if is_step:
            newest = b"" if number % stride == 0 else line
            number += 1
        elif (others := others + 1) > MOST_OTHERS:
            continue
        if not (is_step and newest):
            records += _object(line)
    if newest:
        records += _object(newest)
    return StepRecords(records, end, sampled=stride > 1 or size > MOST_BYTES)


def _lines(descriptor: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line of the file, with the offset after the line. Of a file that is too
    large, yield only the lines of some blocks.
    """
    blocks = -(-size // BLOCK)
    skip = max(1, -(-size // MOST_BYTES))
    rest: bytes | None = b""
    """The beginning of a line from the block before; None if the beginning was not read."""
    for block in range(blocks):
        if block % skip and block != blocks - 1:
            rest = None
            continue
        data, at = os.pread(descriptor, BLOCK, block * BLOCK), block * BLOCK
        if rest is None:
            cut = data.find(b"\n") + 1
            if not cut:
                continue
            data, at, rest = data[cut:], at + cut, b""
        *whole, last = data.split(b"\n")
        for line in whole:
            at += len(line) + 1
            yield rest + line, at
            rest = b""
        # An endless line is not kept: its contents are not worth that much memory.
        rest = rest + last if len(rest) + len(last) <= BLOCK else None


def _object(line: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [found] if isinstance(found, dict) else []
