"""What is shown of a binding, and what a rank may have written in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.made_attempts import an_attempt_row
from zerotoolsd.attempts.numa.binding_view import shown_binding


def a_rank(number: int, cpus: Any = "0-15", nodes: Any = None, **changes: Any) -> dict[str, Any]:
    nodes = [0] if nodes is None else nodes
    binding = {"cpus": cpus, "nodes": nodes, "why": None, **changes}
    return {"rank": number, "pid": 100 + number, "binding": binding}


def ended(*ranks: object) -> tuple[dict[str, Any], ...] | None:
    return shown_binding(an_attempt_row(result={"ranks": list(ranks)}))


def test_ranks_with_the_same_are_one_line() -> None:
    failed = "its memory is not preferred: Operation not permitted"
    found = ended(
        a_rank(0),
        a_rank(1),
        a_rank(2, "16-31", [1], why=failed),
        a_rank(3, "", [], why="the driver does not report"),
        a_rank(4),
    )
    assert found == (
        {"ranks": "0-1,4", "cpus": "0-15", "memory_nodes": [0], "why": None},
        {"ranks": "2", "cpus": "16-31", "memory_nodes": [1], "why": failed},
        {"ranks": "3", "cpus": "", "memory_nodes": [], "why": "the driver does not report"},
    )


def test_of_one_that_runs_its_supervisor_says_it(tmp_path: Path) -> None:
    running = an_attempt_row(state="running", run_dir=str(tmp_path), result=None)
    assert shown_binding(running) is None
    (tmp_path / "run.json").write_text(json.dumps({"pid": 1, "ranks": [a_rank(0)]}))
    assert shown_binding(running) == (
        {"ranks": "0", "cpus": "0-15", "memory_nodes": [0], "why": None},
    )
    (tmp_path / "run.json").write_text("{")
    assert shown_binding(running) is None


@pytest.mark.parametrize(
    "rank",
    [
        {"rank": 0, "pid": 1},
        {"rank": 0, "binding": "all"},
        a_rank(-1),
        a_rank(2**70),
        a_rank(True),
        a_rank(0, cpus=["0"]),
        a_rank(0, cpus="0-15\x1b[31m"),
        a_rank(0, cpus="0," * 10_000 + "0"),
        a_rank(0, nodes="0"),
        a_rank(0, nodes=["0"]),
        a_rank(0, nodes=[-1]),
        a_rank(0, nodes=[0] * 2000),
        7,
    ],
)
def test_what_is_no_binding_is_not_shown(rank: object) -> None:
    assert ended(rank) is None


def test_a_reason_is_one_line_and_not_endless() -> None:
    (line,) = ended(a_rank(0, why="a\n\x1b[2J" + "b" * 9999)) or ()
    assert line["why"].isprintable()
    assert len(line["why"]) == 500


def test_records_without_ranks_say_nothing() -> None:
    assert shown_binding(an_attempt_row(result=None)) is None
    assert shown_binding(an_attempt_row(result={"ranks": 3})) is None
