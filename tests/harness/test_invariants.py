"""The checker finds what is wrong, and nothing where all is right."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.invariants import broken, failed, unused_texts
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import leave_attempt
from zerotools.runs.manifest import write_manifest
from zerotoolsd.supervisor.durable_files import write_json

AGAIN = (
    "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids)"
    " VALUES (1, 2, 'u', 'running', '/none', '[]')"
)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (None, []),
        ("DELETE FROM lease", ["without a lease"]),
        ("UPDATE job SET state = 'succeeded'", ["is not over", "its events say running"]),
        ("UPDATE attempt SET state = 'ended'", ["leased to an attempt that is over"]),
        (AGAIN, ["2 attempts that are not over", "after attempt 1 had finished"]),
        ("DELETE FROM job", ["was acknowledged and is lost", "does not exist, but has attempts"]),
        ("UPDATE job SET text_number = 7", ["job 1 has lost its job file 7"]),
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


def test_a_job_file_without_a_job_is_found(tmp_path: Path) -> None:
    leave_attempt(tmp_path / "state", make_job("exit=0"))
    assert unused_texts(tmp_path / "state") == set()
    with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as db, db:
        db.execute("INSERT INTO job_text VALUES (7, '{}', '{}'), (8, '{}', '{}')")
        db.execute("UPDATE job SET text_number = 8")
    assert broken(tmp_path / "state", [1]) == []
    assert unused_texts(tmp_path / "state") == {7}


def test_a_checkpoint_under_its_name_has_the_bytes_that_its_manifest_says(tmp_path: Path) -> None:
    leave_attempt(tmp_path / "state", make_job("exit=0"))
    with closing(sqlite3.connect(tmp_path / "state" / "zerotools.db")) as db:
        (output,) = db.execute("SELECT output_dir FROM job").fetchone()
    step = Path(output) / "step-00000001"
    step.mkdir(parents=True)
    (step / "data").write_bytes(b"abcd")
    write_manifest(step)
    assert broken(tmp_path / "state", [1]) == []
    (step / "data").write_bytes(b"abce")  # as long as before
    (found,) = broken(tmp_path / "state", [1])
    assert found.startswith(f"job 1 has a damaged checkpoint: {step / 'data'} has SHA-256")


def test_a_gpu_is_used_by_one_attempt(tmp_path: Path) -> None:
    state = tmp_path / "state"
    leave_attempt(state, make_job("exit=0"), gpu_uuids=("GPU-1",))
    with closing(sqlite3.connect(state / "zerotools.db")) as db, db:
        db.execute(AGAIN.replace("'[]'", "'[\"GPU-1\"]'"))
    assert "GPU-1 is used by attempts (1, 1) and (1, 2) (job, number) at once" in broken(state)
