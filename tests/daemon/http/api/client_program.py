"""A program over the client that is generated from the document; mypy checks both.

`python client_program.py SOCKET JOBFILE` submits the job on hold, looks at it and cancels it. It
prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
from zerotoolsd_client import Client
from zerotoolsd_client.api.daemon import get_health
from zerotoolsd_client.api.jobs import cancel_job, get_job, list_jobs, submit_job
from zerotoolsd_client.models import (
    Health,
    Job,
    JobPage,
    JobView,
    ListJobsState,
    Problem,
    SubmitRequest,
)


def main(path: str, job_file: str) -> dict[str, object]:
    """Return what was seen."""
    client = Client(
        base_url="http://localhost", httpx_args={"transport": httpx.HTTPTransport(uds=path)}
    )
    health = get_health.sync(client=client)
    assert isinstance(health, Health)
    job = Job.from_dict(json.loads(Path(job_file).read_text()))
    body = SubmitRequest(job=job, hold=True, priority=2)
    new = submit_job.sync(client=client, body=body)
    assert isinstance(new, JobView)
    page = list_jobs.sync(client=client, state=ListJobsState.ON_HOLD)
    assert isinstance(page, JobPage)
    shown = get_job.sync(new.id, client=client)
    assert isinstance(shown, JobView)
    answer = cancel_job.sync_detailed(new.id, client=client)
    assert isinstance(answer.parsed, JobView)
    again = cancel_job.sync_detailed(new.id, client=client)
    assert isinstance(again.parsed, Problem)
    return {
        "pid": health.pid,
        "listed": [each.id for each in page.jobs],
        "shown": [shown.name, shown.state, shown.priority, shown.spec["train"]["steps"]],
        "cancelled": [answer.status_code, answer.parsed.state],
        "again": [again.status_code, again.parsed.code],
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
