"""Each rule can be broken, and none is where all is right."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.faults.rules import Rules

SCRIPT = '{"script": {"command": ["true"]}}'
BEGAN = 1_000_000.0
RIGHT = "INSERT INTO event VALUES (3, 3, 1, 1, 'finished', 'running', 'succeeded', NULL)"
STOPPED = (
    "INSERT INTO event VALUES (3, 3, 1, 1, 'cancel', 'running', 'stopping', NULL);"
    f"INSERT INTO event VALUES (4, {BEGAN}, 1, 1, 'stopped', 'stopping', 'cancelled', NULL)"
)


def sql(state: Path, text: str) -> None:
    with closing(sqlite3.connect(state / "zerotools.db")) as queue, queue:
        queue.executescript(text)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """Of a job that runs, and whose script was stopped 3 seconds after its begin."""
    state = tmp_path / "state"
    state.mkdir()
    sql(
        state,
        "CREATE TABLE job (id, state, ended, spec, text_number);"
        "CREATE TABLE job_text (number, full_text, set_text);"
        "CREATE TABLE event (seq, time, job_id, attempt, kind, from_state, to_state, why);"
        f"INSERT INTO job VALUES (1, 'running', NULL, '{SCRIPT}', NULL);"
        "INSERT INTO event VALUES (1, 1, 1, NULL, 'submit', NULL, 'launching', NULL);"
        "INSERT INTO event VALUES (2, 2, 1, 1, 'started', 'launching', 'running', NULL);",
    )
    run = tmp_path / "1" / "attempt-1"
    run.mkdir(parents=True)
    (run / "stop").touch()
    os.utime(run / "stop", (BEGAN + 3, BEGAN + 3))
    stamp(tmp_path, 1, "begin")
    found = Rules(state, tmp_path / "stamps")
    assert found.broken(()) == []
    return found


def stamp(directory: Path, seconds: float, word: str) -> None:
    with (directory / "stamps").open("a") as file:
        file.write(f"{directory}/1/attempt-1 {BEGAN + seconds:.3f} 0 {word}\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE event SET why = 'other' WHERE seq = 1", "event 1 was"),
        ("DELETE FROM event WHERE seq = 2", "event 2 is lost"),
        (RIGHT.replace("(3,", "(0,"), "event 0 was added after newer events"),
        (RIGHT.replace("finished", "retry"), "from running to succeeded by retry"),
        (f"{RIGHT}; UPDATE job SET state = 'succeeded'", "has not written its last stamp"),
        (f"{STOPPED}; UPDATE job SET state = 'cancelled'", "cancelled, but wrote a stamp 1.00 s"),
    ],
)
def test_a_rule_of_the_queue_is_looked_at(
    tmp_path: Path, rules: Rules, change: str, words: str
) -> None:
    sql(tmp_path / "state", change)
    (found,) = rules.broken(())
    assert words in found


def test_a_job_that_was_removed_takes_its_events_along(tmp_path: Path, rules: Rules) -> None:
    sql(tmp_path / "state", "DELETE FROM job; DELETE FROM event WHERE job_id = 1")
    assert rules.broken({1}) == []


def test_nothing_is_stamped_long_after_a_stop(tmp_path: Path, rules: Rules) -> None:
    stamp(tmp_path, 3.1, "step")
    stamp(tmp_path, 5000, "saved")
    assert rules.broken(()) == []
    stamp(tmp_path, 4000, "more")
    (found,) = rules.broken(())
    assert "was stopped, but wrote the stamps step after 0.10 s, more after 3997.00 s" in found


def test_nor_are_several_steps_soon_after_it(tmp_path: Path, rules: Rules) -> None:
    for seconds in (3.1, 3.2, 3.3):
        stamp(tmp_path, seconds, "step")
    (found,) = rules.broken(())
    assert found.endswith("stamps step after 0.10 s, step after 0.20 s, step after 0.30 s")
