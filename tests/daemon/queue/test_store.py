"""The store: changes are guarded, carry an event, and last."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import forked
from harness.faults import warm
from harness.syscalls import IS_SUPPORTED
from tests.matrices import FULL
from zerotools.core.errors import BadFile, Unsupported
from zerotools.jobs.client.queue_backup import back_up_queue, restore_queue
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.queue import schema
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import ArrayPlace, AttemptRow, JobRow
from zerotoolsd.queue.sql_values import Unstorable
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import Changed, NewJob

Open = Callable[[Path], Store]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(Store(path)))


def submit(store: Store, **changes: Any) -> tuple[JobRow, bool]:
    values: dict[str, Any] = {
        "uid": 1,
        "name": None,
        "spec": JobSpec(),
        "output_dir": None,
        "default_output": Path("/state/jobs"),
        "idempotency_key": None,
        "now": 5.0,
    }
    return store.submit(**{**values, **changes})


def attempt(job: JobRow, number: int = 1, gpus: tuple[str, ...] = ()) -> AttemptRow:
    return AttemptRow(
        job_id=job.id,
        number=number,
        token=f"token-{job.id}-{number}",
        state="launching",
        run_dir="/run",
        gpu_uuids=gpus,
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )


def admit(store: Store, job: JobRow, *gpus: str) -> None:
    with store.change(job, JobStatus(state="launching"), "admit", now=6, attempt=1) as change:
        change.add_attempt(attempt(job, gpus=gpus))


def test_a_submitted_job_is_there_after_reopening(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    job, new = submit(store, name="a")
    store.close()
    assert new
    assert opened(tmp_path).jobs() == [job]


def test_a_job_without_a_name_or_a_place_gets_both(tmp_path: Path, opened: Open) -> None:
    job, _ = submit(opened(tmp_path))
    assert (job.name, job.output_dir) == ("job-1", "/state/jobs/1/output")


def test_the_same_key_queues_once_per_uid(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    first, _ = submit(store, idempotency_key="k")
    assert submit(store, idempotency_key="k") == (first, False)
    other, new = submit(store, idempotency_key="k", uid=2)
    assert new
    assert other.id != first.id
    with pytest.raises(Conflict, match="key k was used for job 1"):
        submit(store, idempotency_key="k", spec=JobSpec(seed=1))


def test_a_job_sent_again_is_the_same_if_its_defaults_have_changed_since(
    tmp_path: Path, opened: Open
) -> None:
    store = opened(tmp_path)
    first, _ = submit(store, idempotency_key="k")
    assert '"max_restarts": 3' in first.spec_text
    of_before = first.spec_text.replace('"max_restarts": 3', '"max_restarts": 5')
    with closing(sqlite3.connect(tmp_path / "zerotools.db")) as db, db:
        db.execute("UPDATE job SET spec = ?", (of_before,))
    again, new = submit(store, idempotency_key="k")
    assert (again.id, new, again.spec.max_restarts) == (first.id, False, 5)


def test_a_change_is_guarded_and_appends_an_event(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    job, _ = submit(store)
    admit(store, job)
    with pytest.raises(Changed, match="job 1 is no longer queued"):
        admit(store, job)
    kinds = [(e.kind, e.from_state, e.to_state, e.attempt) for e in store.events(0)]
    assert kinds == [
        ("submit", None, "queued", None),
        ("admit", "queued", "launching", 1),
    ]
    assert [event.kind for event in store.events(1)] == ["admit"]
    assert store.state_since(job) == store.events(0)[0].time
    assert store.state_since(store.job(job.id)) == store.events(1)[0].time
    store.remove_events(store.events(0)[-1].time)
    assert store.state_since(job) is None


def test_a_change_that_fails_halfway_changes_nothing(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    job, _ = submit(store)
    twice = attempt(job, gpus=("GPU-1", "GPU-1"))
    with (
        pytest.raises(Changed),
        store.change(job, JobStatus(state="launching"), "admit", now=6) as change,
    ):
        change.add_attempt(twice)
    assert store.job(job.id) == job
    assert store.attempts(job.id) == []
    assert store.leases() == []
    assert len(store.events(0)) == 1


def test_a_gpu_is_leased_once(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    (one, _), (two, _) = submit(store), submit(store)
    admit(store, one, "GPU-1")
    with pytest.raises(Changed, match="GPU-1 is leased"):
        admit(store, two, "GPU-1")
    assert store.job(two.id).state == "queued"
    assert [lease.job_id for lease in store.leases()] == [one.id]


def test_an_ended_attempt_frees_its_gpus_unless_they_are_held(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    job, _ = submit(store)
    admit(store, job, "GPU-1")
    job = store.job(job.id)
    with store.change(job, JobStatus(state="failed", reason="x"), "gave_up", now=9) as change:
        change.attempt_ended(1, 9.0, {"cause": "x"}, "pid 9")
    (lease,) = store.leases()
    assert lease.held_by == "pid 9"
    store.release(lease, 10.0)
    assert store.leases() == []
    (ended,) = store.attempts(job.id)
    assert (ended.state, ended.result) == ("ended", {"cause": "x"})
    assert (store.job(job.id).ended, store.job(job.id).standing.reason) == (9.0, "x")


def test_jobs_are_listed_from_the_newest_in_pages(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    for _ in range(5):
        submit(store)
    assert [job.id for job in store.jobs(limit=2)] == [5, 4]
    assert [job.id for job in store.jobs(limit=2, after=4)] == [3, 2]
    assert store.jobs(["running"]) == []
    assert [job.id for job in store.jobs(seconds=0.0)] == [5]
    assert store.jobs(["running"], seconds=0.0) == []


def test_jobs_are_listed_by_priority_in_pages(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    for priority in (0, 5, 0, -1, 5):
        submit(store, priority=priority)
    assert [job.id for job in store.jobs(by_priority=True)] == [2, 5, 1, 3, 4]
    assert [job.id for job in store.jobs(by_priority=True, limit=2, after=5)] == [1, 3]
    assert store.jobs(by_priority=True, after=4) == []


def test_the_database_is_readable_by_its_owner_alone(tmp_path: Path, opened: Open) -> None:
    opened(tmp_path)
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_transitions_are_synced_to_the_disk(tmp_path: Path) -> None:
    connection = schema.open_database(tmp_path)
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    connection.close()


def test_p8_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, opened: Open) -> None:
    newer = (*schema.MIGRATIONS, "CREATE TABLE later (x);")
    schema.open_database(tmp_path, newer).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    known = len(schema.MIGRATIONS)
    refusal = f"has schema {known + 1}, but this zerotoolsd reads only up to {known}"
    with pytest.raises(Unsupported, match=refusal):
        opened(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_p8_an_older_schema_is_copied_then_migrated(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    submit(store)
    store.close()
    newer = (*schema.MIGRATIONS, "ALTER TABLE job ADD COLUMN later TEXT;")
    migrated = schema.open_database(tmp_path, newer)
    assert migrated.execute("SELECT id, later FROM job").fetchall()[0][0] == 1
    copy = sqlite3.connect(tmp_path / f"zerotools.db.schema-{len(schema.MIGRATIONS)}.bak")
    assert copy.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
    assert copy.execute("SELECT count(*) FROM job").fetchone() == (1,)
    copy.close()
    migrated.close()


def test_a_migration_that_fails_leaves_the_old_database(tmp_path: Path, opened: Open) -> None:
    opened(tmp_path).close()
    broken = (*schema.MIGRATIONS, "CREATE TABLE later (x); CREATE TABLE job (x);")
    with pytest.raises(BadFile, match="table job already exists"):
        schema.open_database(tmp_path, broken)
    store = opened(tmp_path)
    assert store.schema == len(schema.MIGRATIONS)


@pytest.mark.skipif(not IS_SUPPORTED, reason="the numbers of system calls are those of x86-64")
def test_p8_a_migration_that_is_killed_at_any_call_is_made_at_the_next_start(
    tmp_path: Path, opened: Open
) -> None:
    (tmp_path / "old").mkdir()
    store = opened(tmp_path / "old")
    submit(store)
    store.close()
    words = ["-m", "tests.daemon.queue.killed_migration", str(tmp_path), "1" if FULL else "5"]
    calls = forked.output(warm.MODULES, words, env=os.environ, timeout=120)
    assert int(calls) > 20


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"SQLite format 3\0"])
def test_an_unreadable_database_stops_with_instructions(
    tmp_path: Path, opened: Open, content: bytes
) -> None:
    (tmp_path / "zerotools.db").write_bytes(content)
    with pytest.raises(BadFile, match="does not replace this queue with an empty one"):
        opened(tmp_path)
    assert (tmp_path / "zerotools.db").read_bytes() == content


def test_a_damaged_page_is_found(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    for _ in range(200):
        submit(store, spec=JobSpec(env={"X": "x" * 2000}))
    store.close()
    path = tmp_path / "zerotools.db"
    data = bytearray(path.read_bytes())
    data[4096 * 5 : 4096 * 6] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(BadFile, match="cannot be read"):
        opened(tmp_path)


def test_a_lost_database_is_not_replaced_by_an_empty_one(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    with pytest.raises(BadFile, match="it is missing"):
        opened(tmp_path)
    assert not (tmp_path / "zerotools.db").exists()


def test_leftovers_of_a_crash_are_cleared(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "zerotools.db.new").write_bytes(b"half a database")
    submit(opened(tmp_path))
    assert not (tmp_path / "zerotools.db.new").exists()


@pytest.mark.parametrize(
    "text",
    ["ck-\udce9t\udce9", "\ud800", "nul\0nul", "\ud83d\ude00", "plain \\udce9", "\U0001f600", ""],
)
def test_any_text_comes_back_as_it_was(tmp_path: Path, opened: Open, text: str) -> None:
    store = opened(tmp_path)
    job, _ = submit(store, name=text or None, output_dir=f"/{text}")
    row = replace(attempt(job), run_dir=text, resumed_from=text)
    with store.change(job, JobStatus(state="launching", reason=text), "admit", now=6) as change:
        change.add_attempt(row)
    store.close()
    store = opened(tmp_path)
    assert store.job(job.id).standing.reason == text
    assert store.job(job.id).output_dir == f"/{text}"
    assert store.attempts(job.id) == [row]
    assert store.events(0)[1].why == text


@pytest.mark.parametrize("odd", [2**63, -(2**63) - 1, float("nan")])
def test_a_number_that_sqlite_would_change_is_refused_and_nothing_is_written(
    tmp_path: Path, opened: Open, odd: Any
) -> None:
    store = opened(tmp_path)
    job, _ = submit(store)
    after = JobStatus(state="launching", best_step=odd)
    with pytest.raises(Unstorable), store.change(job, after, "admit", now=6):
        pass
    assert store.job(job.id) == job


def test_a_reason_of_any_length_is_kept_as_its_ends(tmp_path: Path, opened: Open) -> None:
    store = opened(tmp_path)
    job, _ = submit(store)
    reason = "first " + "x" * 10**7 + " last"
    with store.change(job, JobStatus(state="held", reason=reason), "hold", now=6):
        pass
    kept = str(store.job(job.id).standing.reason)
    assert len(kept) < 5000
    assert kept.startswith("first x")
    assert kept.endswith("x last")


def test_shares_of_a_gpu_are_leased_beside_one_another_and_never_beside_a_whole_one(
    tmp_path: Path, opened: Open
) -> None:
    store = opened(tmp_path)
    jobs = [submit(store)[0] for _ in range(3)]

    def lease(job: JobRow, size: int | None) -> None:
        with store.change(job, JobStatus(state="launching"), "admit", now=6, attempt=1) as change:
            change.add_attempt(attempt(job, gpus=("GPU-1",)), size)

    lease(jobs[0], 10)
    lease(jobs[1], 20)
    with pytest.raises(Changed, match="GPU-1 is leased"):
        lease(jobs[2], None)
    assert [(lease.job_id, lease.bytes) for lease in store.leases()] == [(1, 10), (2, 20)]
    store.release(store.leases()[0], 7.0)
    assert [lease.job_id for lease in store.leases()] == [2]


@pytest.mark.parametrize("name", [None, "named"])
def test_a_job_that_was_queued_is_as_it_is_read_again(
    tmp_path: Path, opened: Open, name: str | None
) -> None:
    store = opened(tmp_path)
    place = ArrayPlace(id=0, index=0, size=2, label="seed=1")
    spec = JobSpec()
    new = NewJob(
        uid=5,
        name=name,
        spec=spec,
        output_dir=None,
        default_output=tmp_path,
        idempotency_key=None,
        now=3.0,
        priority=4,
        hold="held",
        begin=9.0,
        array=place,
        expected="{}",
    )
    found = list(store.submit_array([new, replace(new, array=replace(place, index=1))])[0])
    assert found == [store.job(1), store.job(2)]
    assert [job.array and job.array.id for job in found] == [1, 1]
    ((alone, _),) = store.submit_all([replace(new, array=None, hold=None)])  # type: ignore[misc]
    assert alone == store.job(3)


def test_no_number_of_an_event_is_used_twice_after_a_restore(tmp_path: Path) -> None:
    """A client that follows events would miss those below the number that it knows."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    with closing(Store(state)) as store:
        submit(store)
    back_up_queue(state, copy)
    with closing(Store(state)) as store:
        for _ in range(5):
            submit(store)
        newest = store.last_change
    restore_queue(copy, state)
    with closing(Store(state)) as store:
        assert store.last_change == newest
        submit(store)
        assert [event.seq for event in store.events(newest)] == [newest + 1]
    for path in state.glob("zerotools.db*"):  # lost; only the number of the last change is known
        if not path.name.endswith(".last-change"):
            path.unlink()
    with closing(Store(state, rebuild=True)) as store:
        assert store.last_change == newest + 1
