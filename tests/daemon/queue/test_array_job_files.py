"""Job files that are written before their jobs are seen by nobody until these are queued."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from zerotools.jobs.client.queue_backup import DATABASE
from zerotools.jobs.jobfile_tables.spec import JobSpec, with_key
from zerotoolsd.queue import array_job_files
from zerotoolsd.queue.array_job_files import SLICE_CHARACTERS, sliced_texts
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import ArrayPlace, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import JobParts, NewJob

SPEC = with_key(JobSpec(name="long"), "checkpoint", upload_to="s3://bucket/run")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as found:
        yield found


def new(index: int = 0) -> NewJob:
    return NewJob(
        uid=7,
        name=None,
        spec=SPEC,
        output_dir=None,
        default_output=Path("/state/jobs"),
        idempotency_key=None,
        now=5.0,
        parts=JobParts.of(SPEC),
        array=ArrayPlace(id=0, index=index, size=2, label=""),
    )


def write(store: Store, count: int = 2) -> list[int]:
    parts = JobParts.of(SPEC)
    return store.texts.write([(parts.full_text, parts.set_text)] * count)


def queue(store: Store) -> list[JobRow]:
    jobs = [replace(new(index), text_number=each) for index, each in enumerate(write(store))]
    return list(store.submit_array(jobs)[0])


def kept(store: Store) -> int:
    return int(store._sql("SELECT count(*) AS n FROM job_text").fetchone()["n"])


def test_a_written_text_is_no_job_and_counts_for_nobody(store: Store) -> None:
    write(store)
    assert (store.jobs(), store.state_counts(), store.last_change) == ([], {}, 0)
    assert store.of_user.text_bytes(7) == 0
    assert store.specs_with("upload_to") == []


def test_a_job_with_a_written_text_is_as_any_other(store: Store) -> None:
    first, second = queue(store)
    inline = list(store.submit_array([new(), new(1)])[0])
    assert [first, second] == [store.job(1), store.job(2)] == store.jobs(array=1)[::-1]
    assert store.job(1).spec_text == inline[0].spec_text
    assert store.job(2).reading.spec == inline[1].reading.spec
    assert [job_id for job_id, _ in store.specs_with("upload_to")] == [1, 2, 3, 4]
    each = sum(len(text) for text in (first.spec_text, first.given_text or ""))
    assert store.of_user.text_bytes(7) == 4 * each
    with store.change(first, JobStatus(state="cancelled"), "cancel", now=6.0):
        pass
    assert store.uploads.may_need([1], 1.0) == [1]
    assert store.state(1) == "cancelled"
    assert store.state(9) is None


def test_texts_without_jobs_are_deleted_when_the_queue_is_opened(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        queue(store)
        write(store, 3)  # the daemon is killed before the jobs are queued
        assert kept(store) == 5
    with closing(Store(tmp_path)) as store:
        assert kept(store) == 2
        assert [job.spec.name for job in store.jobs()] == ["long", "long"]


def test_a_text_goes_with_its_job_and_never_before(store: Store) -> None:
    first, second = queue(store)
    store.texts.refuse([1, 2])
    while store.texts.delete_refused():
        pass
    assert store.job(2).spec_text == second.spec_text
    with store.change(second, second.standing, "edit", now=6.0) as change:
        change.set_spec("short", "{}", "{}", "/out", None)
    assert (store.job(2).spec_text, kept(store)) == ("{}", 1)
    with store.change(first, JobStatus(state="cancelled"), "cancel", now=6.0):
        pass
    store.remove(store.job(1), 7.0, "it is old")
    assert kept(store) == 0


@pytest.mark.parametrize("how", ["another is deleted", "another is written"])
def test_a_text_that_could_not_be_deleted_is_deleted_later(
    store: Store, tmp_path: Path, how: str
) -> None:
    store.texts.refuse(write(store))
    with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.texts.delete_refused()
    assert kept(store) == 2
    if how == "another is deleted":
        while store.texts.delete_refused():
            pass
        assert kept(store) == 0
    else:
        write(store, 1)
        assert kept(store) == 1


def test_many_texts_are_deleted_in_several_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_job_files, "DELETE_SECONDS", 0.0)
    store.texts.refuse(write(store, 3))
    assert [store.texts.delete_refused() for _ in range(3)] == [True, True, False]
    assert kept(store) == 0


def test_a_slice_has_few_characters_and_at_least_one_text() -> None:
    large, small = ("x" * SLICE_CHARACTERS, "y"), ("x", "")
    texts = [small, large, large, small, small]
    assert list(sliced_texts(texts)) == [texts[:2], [large], texts[3:]]
    assert list(sliced_texts([])) == []


def test_lists_find_each_text_by_its_number(store: Store) -> None:
    queue(store)
    statements: list[str] = []
    store._connection.set_trace_callback(statements.append)
    store.jobs(limit=1)
    store.jobs(["queued"], limit=1, after=9, name="long", uid=7, array=1)
    store.job(1)
    store.by_key(7, "key")
    store.jobs_with_open_attempts("queued")
    store.specs_with("upload_to")
    store.uploads.may_need([1], 1.0)
    store.of_user.text_bytes(7)
    store._connection.set_trace_callback(None)
    read = [each for each in statements if "job_text" in each]
    assert len(read) == 8
    for statement in read:
        plan = [row["detail"] for row in store._sql(f"EXPLAIN QUERY PLAN {statement}")]
        assert not any(step.startswith("SCAN job_text") for step in plan), (statement, plan)
        assert any("SEARCH job_text USING INTEGER PRIMARY KEY" in step for step in plan), plan
