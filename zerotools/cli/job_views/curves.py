"""The step reports of a job, and of those that it resumes, as curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from zerotools.cli.job_views.describe import Job
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.step_curves import Curves, output_dirs_of

_PAGE = 1000


def curves_of(client: DaemonClient, job: Job) -> Curves:
    """Return the curves of all attempts of `job` and of the jobs that it resumes, up to their last
    steps."""
    curves = Curves()
    for each in history(client, job):
        for attempt in each["attempts"]:
            curves.take(_records(client, int(each["id"]), int(attempt["number"])))
    return curves


def history(client: DaemonClient, job: Job, pages: int | None = None) -> list[Job]:
    """Return `job` after the jobs that it resumes: the `resume_from` of each lies in the output
    directory of an older job. A checkpoint of another origin ends the chain, and so does a job that
    is not in so many `pages` of a thousand (None: all)."""
    chain: list[Job] = [job]
    older = jobs_before(client, int(job["id"]), pages) if _sources(job) else iter(())
    sources = _sources(job)
    for each in older:
        if not sources:
            break
        if each["attempts"] and each["output_dir"] in sources:
            chain.append(each)
            sources = _sources(each)
    return chain[::-1]


def _sources(job: Job) -> frozenset[str]:
    path = job["spec"].get("resume_from")
    return output_dirs_of(path) if isinstance(path, str) else frozenset()


def jobs_before(client: DaemonClient, job_id: int, pages: int | None = None) -> Iterator[Job]:
    """Yield every job with a number below `job_id`, the newest first, from at most `pages`
    pages."""
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
