"""What is said of the lines that jobs left."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.faults.daemons import Place

RAN = ["began 1 from 0", "step 1", "saved 1", "done"]


@pytest.mark.parametrize(
    ("after", "idle", "strict", "ranks_die"),
    [
        ([], 0, 0, 0),
        (["began 2 from 1", "done"], 1, 1, 0),
        (["began 2 from 0", "step 1", "done"], 0, 1, 1),
    ],
)
def test_a_training_that_was_done_may_begin_again_only_where_nothing_is_left(
    tmp_path: Path, after: list[str], idle: int, strict: int, ranks_die: int
) -> None:
    place = Place(tmp_path / "place", tmp_path)
    place.state.mkdir()
    with closing(sqlite3.connect(place.state / "zerotools.db")) as database, database:
        database.execute("CREATE TABLE job (name, state)")
        database.execute("INSERT INTO job VALUES ('t', 'succeeded')")
    (place.path / "t.lines").write_text("\n".join([*RAN, *after]))
    jobs = {"t": place.training("t", 1)}
    assert place.idle("t") == idle
    assert len(list(place.wrong(jobs))) == strict
    assert len(list(place.wrong(jobs, ranks_die=True))) == ranks_die
