"""What the attempts of a job, and of those that it resumes, reported step by step, as curves."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from zerotools.cli.job_views.describe import Job
from zerotools.jobs.client.daemon_client import DaemonClient

CurvePoints = dict[int, float]
"""A value for each step."""
_PAGE = 1000


@dataclass(frozen=True)
class Curves:
    """The loss, that of evaluations, and bytes of memory: of rank 0 on the host, of its GPU."""

    loss: CurvePoints = field(default_factory=dict)
    eval_loss: CurvePoints = field(default_factory=dict)
    host_bytes: CurvePoints = field(default_factory=dict)
    gpu_bytes: CurvePoints = field(default_factory=dict)

    def take(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add what one attempt reported; it takes the place of what was there from its first step
        on."""
        steps = [each for each in records if each.get("event") in ("step", "eval")]
        known = (step for each in steps if (step := _step(each)) is not None)
        first = min(known, default=None)
        for points in (self.loss, self.eval_loss, self.host_bytes, self.gpu_bytes):
            for step in [step for step in points if first is not None and step >= first]:
                del points[step]
        for each in steps:
            self._add(each)

    def _add(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "eval":
            _put(self.eval_loss, record, "loss")
            return
        _put(self.loss, record, "loss")
        _put(self.host_bytes, record, "rss_bytes")
        _put(self.gpu_bytes, record, "gpu_peak_bytes")


def _step(record: Mapping[str, Any]) -> int | None:
    step = record.get("step")
    return step if type(step) is int and 0 <= step < 2**63 else None


def _put(points: CurvePoints, record: Mapping[str, Any], name: str) -> None:
    """What comes from a job may be of any type."""
    step, value = _step(record), record.get(name)
    if step is None or not isinstance(value, int | float) or isinstance(value, bool):
        return
    if abs(value) <= sys.float_info.max and math.isfinite(value):
        points[step] = float(value)


def curves_of(client: DaemonClient, job: Job) -> Curves:
    """The curves of all attempts of `job` and of the jobs that it resumes, as far as they got."""
    curves = Curves()
    for each in history(client, job):
        for attempt in each["attempts"]:
            curves.take(_records(client, int(each["id"]), int(attempt["number"])))
    return curves


def history(client: DaemonClient, job: Job, pages: int | None = None) -> list[Job]:
    """`job`, behind the jobs that it resumes: each one's `resume_from` lies in the output directory
    of an older job. A checkpoint of another origin ends the chain; so does one whose job is not in
    so many `pages` of a thousand (None: all)."""
    chain: list[Job] = [job]
    older = jobs_before(client, int(job["id"]), pages) if _source(job) is not None else iter(())
    resumed_from = _source(job)
    for each in older:
        if resumed_from is None:
            break
        output = Path(each["output_dir"])
        if each["attempts"] and (resumed_from == output or output in resumed_from.parents):
            chain.append(each)
            resumed_from = _source(each)
    return chain[::-1]


def _source(job: Job) -> Path | None:
    path = job["spec"].get("resume_from")
    return Path(path) if isinstance(path, str) else None


def jobs_before(client: DaemonClient, job_id: int, pages: int | None = None) -> Iterator[Job]:
    """Every job with a number below `job_id`, the newest first; of so many pages alone."""
    for _ in count() if pages is None else range(pages):
        page = client.jobs(limit=_PAGE, after=job_id)
        yield from page
        if len(page) < _PAGE:
            return
        job_id = page[-1]["id"]


def _records(client: DaemonClient, job_id: int, attempt: int) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    since = -1
    after = 0
    while after != since:
        since = after
        answer = client.progress(job_id, attempt=attempt, since=since)
        found += answer["records"]
        after = int(answer["next"])
    return found
