"""P8: the queue that a published version left opens in this one, and every job in it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.dispatchers import running
from tests.daemon.queue.generate_queue import PLACE, STATE
from tests.golden_files import GOLDEN
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.parse import keys_set
from zerotoolsd.config.config_tables import LimitsConfig, RetryConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue import schema
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable_files import write_json

QUEUES = sorted(GOLDEN.glob("zerotools-*/queue.db"))
CONFIG = replace(
    Config(), limits=LimitsConfig(cpu_ranks=2), retry=RetryConfig(first_seconds=0, most_seconds=0)
)
UID = os.geteuid()
TABLES = {"job": ("output_dir", "spec"), "attempt": ("run_dir", "result")}


@pytest.fixture(params=QUEUES, ids=lambda path: path.parent.name)
def queue(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def version(queue: Path) -> str:
    """The version of zerotools whose daemon left the queue."""
    return queue.parent.name.removeprefix("zerotools-")


@pytest.fixture
def state(tmp_path: Path, queue: Path) -> Path:
    """The queue, moved to where a test may write; the machine was restarted since."""
    place = tmp_path / "state"
    place.mkdir()
    shutil.copyfile(queue, place / "zerotools.db")
    (tmp_path / "text.txt").write_text("text\n")
    with closing(sqlite3.connect(place / "zerotools.db")) as db, db:
        for table, columns in TABLES.items():
            for column in columns:
                for old, new in ((STATE, place), (PLACE, tmp_path)):
                    db.execute(
                        f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                        (str(old), str(new)),
                    )
        found = db.execute("SELECT run_dir, token, started FROM attempt WHERE state = 'running'")
        rows = found.fetchall()
    for run_dir, token, started in rows:
        run = Path(run_dir)
        run.mkdir(parents=True)
        for name in ("attempt.json", "run.json"):
            write_json(run / name, {"token": token, "boot_id": "of an earlier boot", "pid": 1})
            # The last sign of life, or the attempt ran until today, beyond its time limit.
            os.utime(run / name, (started + 5, started + 5))
    return place


def test_there_is_a_queue_of_the_first_version() -> None:
    assert QUEUES[0].parent.name == "zerotools-0.1.0"


def test_p8_every_job_of_an_older_queue_is_there_and_goes_on(state: Path, version: str) -> None:
    with closing(Store(state)) as store:
        before = {job.name: job for job in store.jobs()}
        states = {name: job.state for name, job in before.items()}
        assert states == {
            "done": "succeeded",
            "broken": "failed",
            "cancelled": "cancelled",
            "limited": "stopped",
            "crashed": "waiting_retry",
            "runs": "running",
            "waits": "queued",
            "sgd with betas": "queued",
        }
        assert all(not job.reading.problems for job in before.values())
        assert before["done"].spec_version == version

    async def story() -> None:
        async with running(state, config=CONFIG, leave=True) as it:
            for name in ("runs", "crashed", "waits", "sgd with betas"):
                ended = await it.reach(before[name].id, "succeeded", "failed", "held")
                assert (name, ended.state) == (name, "succeeded"), ended.reason
                starts = 2 if name in ("runs", "crashed") else 1
                assert len(ended.attempts) == starts
                ranks_read = (Path(ended.attempts[-1].run_dir) / "spec.json").read_text()
                assert_begun_with(before[name], json.loads(ranks_read))
            lost = await it.service.job(before["runs"].id)
            assert lost.attempts[0].cause == "lost: the machine was restarted"
            told = [e.why for e in await it.service.events(0, 0) if e.job_id == lost.id]
            assert any("restart 1 of 2" in str(why) for why in told)
            done = await it.service.job(before["done"].id)
            assert (done.attempts[0].steps_done, done.world_size) == (3, 2)
            again = await it.service.resume(before["broken"].id, uid=UID)
            assert again.spec["max_restarts"] == 0
            assert_begun_with(before["broken"], {**again.spec, "env": before["broken"].spec.env})
            await it.reach(again.id, "failed")

    asyncio.run(story())


def assert_begun_with(job: JobRow, tree: dict[str, Any]) -> None:
    """That `tree` has every value that `job` was stored with, whatever the defaults are now."""
    stored = json.loads(job.spec_text)
    for name in keys_set(stored):
        was, now = (
            reduce(lambda table, key: table[key], name.split("."), t) for t in (stored, tree)
        )
        assert (name, now) == (name, was)


def test_p8_an_older_version_refuses_what_a_newer_one_opened_and_leaves_the_files_alone(
    state: Path,
) -> None:
    original = (state / "zerotools.db").read_bytes()
    version = int.from_bytes(original[60:64], "big")
    migrations = (*schema.MIGRATIONS, "CREATE TABLE of_a_later_version (id INTEGER);")
    schema.open_database(state, migrations).close()
    files = {path.name: path.read_bytes() for path in state.glob("zerotools.db*")}
    with pytest.raises(Unsupported, match="a newer version wrote it"):
        schema.open_database(state, schema.MIGRATIONS[:version])
    assert {path.name: path.read_bytes() for path in state.glob("zerotools.db*")} == files
    shutil.copyfile(state / f"zerotools.db.schema-{version}.bak", state / "zerotools.db")
    older = schema.open_database(state, schema.MIGRATIONS[:version])
    assert older.execute("SELECT count(*) FROM job").fetchone()[0] == 8
    older.close()
