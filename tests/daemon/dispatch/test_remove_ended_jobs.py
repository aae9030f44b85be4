"""100,000 jobs that are over are removed one by one, while others list them and submit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from tests.daemon.daemons import make_job
from tests.daemon.dispatch.cleaning.ended import ME, clean, ids, over, queued, tell
from tests.daemon.dispatchers import Running
from zerotoolsd.dispatch.remove_ended_jobs import NamedPaths
from zerotoolsd.dispatch.remove_job_files import (
    EndedJob,
    NamedPath,
    paths_in_job_file,
    selected_jobs,
)
from zerotoolsd.interface.api_types import CleanRequest
from zerotoolsd.queue.rows import JobRow

COUNT = 40


def add_ended(state: Path, count: int, like: int) -> None:
    with sqlite3.connect(state / "zerotools.db") as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO job (name, output_dir, state, restarts_used, best_step, created, started,"
            " ended, uid, spec, spec_given, spec_version) SELECT 'old', '/nowhere', 'succeeded', 0,"
            " 0, 1, 2, 3, uid, spec, spec_given, spec_version"
            " FROM n, (SELECT * FROM job WHERE id = ?)",
            (count, like),
        )
    database.close()


async def walk(it: Running, size: int) -> list[int]:
    """All pages, from the newest to the oldest."""
    found: list[int] = []
    while page := await it.service.jobs(limit=size, after=found[-1] if found else None):
        found += [job.id for job in page]
        await asyncio.sleep(0)
    return found


def test_pages_are_consistent_while_all_that_they_list_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        first = await over(it)
        add_ended(state, COUNT, first)
        cleaning = asyncio.create_task(clean(it, keep=10))
        walks: list[list[int]] = []
        while not cleaning.done():
            walks.append(await walk(it, 20))
        assert len(ids(cleaning.result())) == COUNT + 1 - 10
        assert cleaning.result().kept == ()
        assert len(walks) > 3, "listing waits for no clean"
        for found in walks:
            assert found == sorted(found, reverse=True)
            assert len(set(found)) == len(found)
            assert found[:9] == list(range(first + COUNT, first + COUNT - 9, -1))
            assert found[-1] == first
        assert await walk(it, 20) == [*walks[-1][:9], first], "the last to end stay"
        later = await over(it)
        assert later == first + COUNT + 1, "no number is used twice"

    tell(state, story)


def test_a_hundred_thousand_are_chosen_from_at_once() -> None:
    many = [EndedJob(number, "succeeded", float(number)) for number in range(1, 100_001)]
    wanted = CleanRequest(keep=50_000, jobs=tuple(range(1, 90_000)))
    began = time.process_time()
    assert [job.id for job in selected_jobs(many, wanted, now=2e5)] == list(range(1, 50_001))
    assert time.process_time() - began < 5, "it takes a tenth of a second; by pairs, minutes"


def test_what_a_job_names_that_comes_meanwhile_is_seen_and_what_ends_is_not(tmp_path: Path) -> None:
    asked: list[int] = []

    async def look_up(job: JobRow) -> list[NamedPath]:
        asked.append(job.id)
        return paths_in_job_file(job.spec_text, job.output_dir)

    async def story(it: Running) -> None:
        store = it.engine.store
        held = queued(it, make_job("release", resume_from="/runs/1/out"), "/elsewhere")
        named = NamedPaths(store, look_up)
        assert await named.by_unfinished(("/runs/2",)) is None
        found = await named.by_unfinished(("/runs/1",))
        assert found is not None
        assert (found[0].id, found[1].key) == (held.id, "resume_from")
        assert await named.by_unfinished(("/runs/1/ou",)) is None
        later = queued(it, make_job("release", resume_from="/runs/2/out"), "/elsewhere")
        found = await named.by_unfinished(("/runs/2",))
        assert found is not None
        assert found[0].id == later.id
        assert asked == [held.id, later.id], "each is looked at once"
        await it.service.cancel(later.id, uid=ME)
        await it.reach(later.id, "cancelled")
        assert await named.by_unfinished(("/runs/2",)) is None

    tell(tmp_path / "state", story)
