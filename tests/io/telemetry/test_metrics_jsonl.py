"""`metrics.jsonl`: one line per step, whatever happened before."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest

from zerotools.io.telemetry.metrics_jsonl import METRICS, MetricsLog


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_each_step_is_one_line_and_the_directory_is_made(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "new" / METRICS)
    log.append(1, {"loss": 2.5, "lr": 1e-3})
    log.append(2, {"loss": math.nan, "grad_norm": -math.inf})
    log.sync()
    log.close()
    assert lines(log.path) == [
        {"step": 1, "loss": 2.5, "lr": 1e-3},
        {"step": 2, "loss": None, "grad_norm": None},
    ]


@pytest.mark.parametrize("width", [0, 300, 70_000], ids=["short", "long", "beyond a block"])
def test_a_later_attempt_takes_the_place_of_the_lines_from_its_first_step(
    tmp_path: Path, width: int
) -> None:
    path = tmp_path / METRICS
    first = MetricsLog(path)
    for step in range(1, 10):
        first.append(step, {"attempt": 1, "note": "x" * width})
    first.close()
    second = MetricsLog(path)
    for step in range(6, 8):
        second.append(step, {"attempt": 2})
    second.close()
    found = [(line["step"], line["attempt"]) for line in lines(path)]  # type: ignore[index]
    assert found == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (7, 2)]


def test_a_run_that_starts_again_from_its_first_step_leaves_nothing_of_the_old(
    tmp_path: Path,
) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2}\n')
    MetricsLog(path).append(1, {})
    assert steps(path) == [1]


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', "\0\0\0\n", "[]\n", "\n", '{"step": "4"}\n'])
def test_a_torn_end_is_cut_away(tmp_path: Path, torn: str) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    MetricsLog(path).append(3, {})
    assert steps(path) == [1, 2, 3]


def test_lines_that_somebody_else_wrote_are_never_cut_away(tmp_path: Path) -> None:
    """A program may have a metrics.jsonl of its own in the same directory."""
    path = tmp_path / METRICS
    own = '{"step": 9}\n{"epoch": 1, "accuracy": 0.5}\n'
    path.write_text(own + '{"step": 4}\n')
    MetricsLog(path).append(1, {})
    assert path.read_text() == own + '{"step": 1}\n'


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / METRICS)
    log.append(1, {})
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 5, most[1]))
    try:
        with pytest.raises(OSError, match=r"space|large"):
            log.append(2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    log.append(2, {})
    assert steps(log.path) == [1, 2]
