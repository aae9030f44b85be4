"""The checker finds what is wrong, and nothing where all is right."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.invariants import broken, failed
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt
from zerotoolsd.supervisor.durable import write_json

AGAIN = (
    "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids)"
    " VALUES (1, 2, 'u', 'running', '/none', '[]')"
)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (None, []),
        ("DELETE FROM lease", ["it has no lease of"]),
        ("UPDATE job SET state = 'succeeded'", ["is not over", "its events say running"]),
        ("UPDATE attempt SET state = 'ended'", ["leased to an attempt that is over"]),
        (AGAIN, ["2 attempts that are not over", "after attempt 1 had finished"]),
        ("DELETE FROM job", ["was acknowledged and is lost", "it is not"]),
    ],
)
def test_each_rule_is_looked_at(tmp_path: Path, damage: str | None, words: list[str]) -> None:
    run = leave_attempt(tmp_path / "state", make_job("exit=0"), gpu_uuids=("GPU-1",))
    write_json(run / "exit.json", {"outcome": "finished"})
    with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as db, db:
        if damage is not None:
            db.execute(damage)
    found = broken(tmp_path / "state", [1])
    assert len(found) >= len(words)
    assert bool(found) == bool(words), found
    for each in words:
        assert any(each in sentence for sentence in found), found
    assert failed(tmp_path / "state") == {}
