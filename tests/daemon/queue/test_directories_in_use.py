"""No two jobs that are not over share a directory, and little is kept to know that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemons import make_job
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue.directories_in_use import DirectoryWriters
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store

SPEC = make_job("exit=0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def jobs_dir(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def queue_one(store: Store, jobs_dir: Path, output_dir: str | None = None) -> JobRow:
    job, _ = store.submit(
        uid=0,
        name="fake",
        spec=SPEC,
        output_dir=output_dir,
        default_output=jobs_dir,
        idempotency_key=None,
        now=1.0,
    )
    return job


def cancel(store: Store, job: JobRow) -> None:
    with store.change(job, JobStatus(state="cancelled"), "cancel", now=2.0):
        pass


def test_the_own_directory_of_a_job_is_its_own_until_it_is_over(
    store: Store, jobs_dir: Path
) -> None:
    writers = DirectoryWriters(store, jobs_dir)
    job = queue_one(store, jobs_dir)
    writers.note(job.id, None)
    with pytest.raises(Conflict, match="job 1, which is queued, writes there"):
        writers.refuse_used(SPEC, job.output_dir)
    cancel(store, job)
    writers.refuse_used(SPEC, job.output_dir)
    writers.refuse_used(SPEC, None)
    writers.refuse_used(SPEC, str(jobs_dir / "77" / "output"))
    writers.refuse_used(SPEC, str(jobs_dir / "1" / "output" / "inside"))


def test_a_job_that_goes_on_in_another_s_directory_has_it(store: Store, jobs_dir: Path) -> None:
    writers = DirectoryWriters(store, jobs_dir)
    first = queue_one(store, jobs_dir)
    cancel(store, first)
    second = queue_one(store, jobs_dir, first.output_dir)
    writers.note(second.id, first.output_dir)
    with pytest.raises(Conflict, match="job 2, which is queued"):
        writers.refuse_used(SPEC, first.output_dir)
    # Its own directory is nobody's.
    writers.refuse_used(SPEC, str(jobs_dir / "2" / "output"))


def test_a_later_daemon_asks_for_the_links_of_what_jobs_named_alone(
    store: Store, jobs_dir: Path
) -> None:
    first = queue_one(store, jobs_dir)
    cancel(store, first)
    for place in (None, first.output_dir, "/link", "/gone"):
        queue_one(store, jobs_dir, place)
    cancel(store, store.job(5))
    writers = DirectoryWriters(store, jobs_dir)
    assert writers.unrecorded() == {4: "/link"}
    assert writers.unrecorded() == {4: "/link"}
    writers.record_directories({4: "/link"}, ["/real"])
    assert writers.unrecorded() == {}
    for place, number in ((first.output_dir, 3), ("/real", 4), (store.job(2).output_dir, 2)):
        with pytest.raises(Conflict, match=f"job {number}, which is queued"):
            writers.refuse_used(SPEC, place)
    writers.refuse_used(SPEC, "/link")


def test_a_state_directory_that_is_reached_by_a_link_is_the_same(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    writers = DirectoryWriters(store, tmp_path / "link" / "jobs")
    queue_one(store, tmp_path / "link" / "jobs")
    assert writers.unrecorded() == {}
    for place in (tmp_path, tmp_path / "link"):
        with pytest.raises(Conflict, match="job 1"):
            writers.refuse_used(SPEC, str(place / "jobs" / "1" / "output"))
