from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.made_attempts import an_attempt_row
from tests.daemon.queue.test_schedule_queued_jobs import queue_one
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.store import Store

LEASE = Lease(gpu_uuid="GPU-1", job_id=1, attempt=1, held_by="pid 7")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        yield opened


def begin(store: Store, *gpus: str, gpu_bytes: int | None = None) -> None:
    """One attempt of the next job, which saw memory that nobody held."""
    job = queue_one(store)
    attempt = an_attempt_row(
        job_id=job.id,
        token=f"token-{job.id}",
        state="launching",
        gpu_uuids=gpus,
        gpu_baseline=dict.fromkeys(gpus, 5),
        result=None,
        ended=None,
    )
    with store.change(job, JobStatus(state="launching"), "admit", now=2.0, attempt=1) as change:
        change.add_attempt(attempt, gpu_bytes)


def end(store: Store, job_id: int, when: float) -> None:
    job = store.job(job_id)
    with store.change(job, JobStatus(state="failed"), "gave_up", now=when, attempt=1) as change:
        change.attempt_ended(1, when, {"outcome": "crashed"}, None)


def test_a_gpu_is_kept_for_what_is_left_and_says_so_once_more_when_that_changes(
    store: Store,
) -> None:
    begin(store, "GPU-1")
    end(store, 1, 3.0)
    assert store.leases() == []
    store.outlived.keep(LEASE, "gpu_residue", "it is kept", 4.0)
    assert store.outlived.leases() == store.leases() == [LEASE]
    store.outlived.keep(replace(LEASE, held_by="nobody"), "gpu_residue", "it is kept still", 5.0)
    assert [lease.held_by for lease in store.leases()] == ["nobody"]
    said = [(e.kind, e.why) for e in store.events_of(1, 9) if e.kind == "gpu_residue"]
    assert said == [("gpu_residue", "it is kept"), ("gpu_residue", "it is kept still")]
    store.release(LEASE, 6.0)
    assert store.leases() == []


def test_a_job_that_has_a_share_of_the_gpu_keeps_it(store: Store) -> None:
    begin(store, "GPU-1", gpu_bytes=9)
    begin(store, "GPU-1", gpu_bytes=9)
    end(store, 1, 3.0)
    store.outlived.keep(LEASE, "gpu_residue", "it is kept", 4.0)
    assert [(x.job_id, x.bytes, x.held_by) for x in store.leases()] == [
        (1, None, "pid 7"),
        (2, 9, None),
    ]


def test_attempts_that_had_gpus_and_ended_lately_have_what_they_saw_before(store: Store) -> None:
    for gpus in (("GPU-1",), (), ("GPU-2", "GPU-3"), ("GPU-4",)):
        begin(store, *gpus)
    for job_id, when in ((1, 10.0), (2, 30.0), (3, 30.0)):
        end(store, job_id, when)
    found = store.outlived.ended_since(20.0)
    assert [(each.job_id, each.gpu_baseline) for each in found] == [(3, {"GPU-2": 5, "GPU-3": 5})]
    assert len(store.outlived.ended_since(0.0)) == 2
