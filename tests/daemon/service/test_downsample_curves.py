from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.service import downsample_curves
from zerotoolsd.service.downsample_curves import (
    RunCurves,
    StepRecords,
    chosen_steps,
    read_records,
    read_run,
)
from zerotoolsd.supervisor.attempt_plan import PROGRESS


def step(number: int, loss: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "time": 1e9 + number, **more}


def saved(number: int, path: object, **more: Any) -> dict[str, Any]:
    return {"event": "checkpoint", "step": number, "path": path, "bytes": 5} | more


def told(*records: dict[str, Any], end: int = 0) -> StepRecords:
    return StepRecords(list(records), end)


def test_attempts_are_joined_where_each_takes_over() -> None:
    run = RunCurves()
    run.add(3, 1, 2, told(*(step(n) for n in range(1, 8)), end=700))
    run.add(3, 2, 1, told(*(step(n, 0.5) for n in range(5, 10)), end=500))
    run.add(4, 1, 4, told(end=0))
    tree = run.to_json(100)
    assert tree["steps"]["step"] == list(range(1, 10))
    assert tree["steps"]["loss"] == [1.0] * 4 + [0.5] * 5
    assert [(part["job"], part["attempt"], part["first_step"]) for part in tree["parts"]] == [
        (3, 1, 1),
        (3, 2, 5),
    ]
    assert [part["world_size"] for part in tree["parts"]] == [2, 1]
    assert tree["follow"] == {"attempt": 1, "since": 0}
    assert not tree["sampled"]


def test_an_attempt_that_begins_anew_takes_the_place_of_all() -> None:
    run = RunCurves()
    run.add(1, 1, 1, told(step(1), step(2)))
    run.add(1, 2, 1, told(step(1, 9.0)))
    tree = run.to_json(10)
    assert tree["steps"]["loss"] == [9.0]
    assert [part["attempt"] for part in tree["parts"]] == [2]


def test_columns_have_a_null_where_nothing_was_reported() -> None:
    run = RunCurves()
    run.add(1, 1, 1, told(step(1, lr=0.1), step(2), step(3, math.nan, lr=0.2)))
    tree = run.to_json(10)
    assert tree["steps"]["step"] == [1, 2]
    assert tree["steps"]["lr"] == [0.1, None]
    assert "grad_norm" not in tree["steps"]
    assert tree["not_finite"] == [3]


def test_a_loss_that_is_not_a_number_is_null_in_json() -> None:
    run = RunCurves()
    run.add(1, 1, 1, told(step(1), *({**step(n), "loss": None} for n in (2, 3))))
    tree = run.to_json(10)
    assert tree["not_finite"] == [2, 3]
    assert not tree["sampled"]


def test_steps_without_a_loss_are_steps_all_the_same() -> None:
    run = RunCurves()
    run.add(1, 1, 1, told({"event": "step", "step": 4, "time": 1e9, "tokens_per_second": 7}))
    assert run.to_json(10)["steps"] == {"step": [4], "time": [1e9], "tokens_per_second": [7.0]}


def test_checkpoints_as_they_were_saved() -> None:
    run = RunCurves()
    odd = [saved(9, "x", bytes=-1), saved(9, 3), saved(9, "y", step="9"), saved(9, "x")]
    run.add(1, 1, 1, told(saved(2, "/o/step-2", time=1e9, verified="at_save", seconds=0.5)))
    run.add(1, 2, 1, told(*odd))
    first, last = run.to_json(10)["checkpoints"]
    assert first == {
        "step": 2,
        "path": "/o/step-2",
        "time": 1e9,
        "size_bytes": 5,
        "seconds": 0.5,
        "verified": "at_save",
        "not_verified": None,
    }
    assert (last["path"], last["size_bytes"]) == ("x", 5)


def test_files_that_are_not_there_are_of_attempts_that_reported_nothing(tmp_path: Path) -> None:
    tree = read_run([(1, 1, None, tmp_path / "a"), (1, 2, 2, tmp_path / "b")]).to_json(5)
    assert tree["steps"] == {"step": []}
    assert tree["parts"] == []


@given(
    st.dictionaries(st.integers(0, 10_000), st.floats(-1e6, 1e6), max_size=300),
    st.integers(1, 60),
)
def test_peaks_the_first_and_the_last_step_stay(points: dict[int, float], most: int) -> None:
    kept = chosen_steps(points, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    if points:
        assert kept[-1] == max(points)
    if points and most > 3:
        assert kept[0] == min(points)
        assert max(points[each] for each in kept) == max(points.values())
        assert min(points[each] for each in kept) == min(points.values())


def test_scores_are_columns_of_their_own() -> None:
    run = RunCurves()
    own = {"event": "eval", "step": 2, "loss": 1.5, "time": 5.0, "accuracy": 0.5}
    run.add(1, 1, 1, told(step(1), step(2), own, end=90))
    other = [{"event": "eval", "step": n, "time": 9.0, "a/acc": n / 8} for n in (1, 2, 3)]
    run.add_scores(told(*other, end=70))
    tree = run.to_json(100)
    assert tree["scores"] == {
        "step": [1, 2, 3],
        "accuracy": [None, 0.5, None],
        "a/acc": [0.125, 0.25, 0.375],
        "time": [9.0, 9.0, 9.0],
    }
    assert (tree["steps"]["step"], tree["evaluations"]["eval_loss"]) == ([1, 2], [1.5])
    assert tree["follow"] == {"attempt": 1, "since": 90}
    assert run.to_json(2)["scores"]["step"] == [2, 3]
    assert RunCurves().to_json(2)["scores"] == {"step": []}


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def step_record(number: int) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 1.0 / number}


def of(run_dir: Path, data: bytes) -> StepRecords:
    (run_dir / PROGRESS).write_bytes(data)
    return read_records(run_dir)


def test_whole_lines_are_read_and_the_rest_may_follow(tmp_path: Path) -> None:
    data = lines(step_record(1), {"event": "eval", "step": 1}, step_record(2))
    found = of(tmp_path, data + b'{"event": "st')
    assert [each["event"] for each in found.records] == ["step", "eval", "step"]
    assert (found.end, found.sampled) == (len(data), False)


def test_there_is_nothing_yet(tmp_path: Path) -> None:
    assert read_records(tmp_path) == StepRecords([])
    assert of(tmp_path, b"") == StepRecords([])
    assert read_records(tmp_path / "gone") == StepRecords([])


def test_what_is_no_object_is_left_out(tmp_path: Path) -> None:
    odd = b"[]\n\xff\xfe\n" + b"[" * 5000 + b"\n{}{}\n\n3\n"
    assert of(tmp_path, odd + lines(step_record(7))).records == [step_record(7)]


@pytest.mark.parametrize("put", ["link", "pipe", "directory"])
def test_only_a_regular_file_is_read(tmp_path: Path, put: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(lines(step_record(1)))
    path = tmp_path / PROGRESS
    match put:
        case "link":
            path.symlink_to(other)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    assert read_records(tmp_path) == StepRecords([])


def test_of_very_many_steps_every_so_many_is_parsed_and_every_evaluation(tmp_path: Path) -> None:
    count = 2 * downsample_curves.MOST_STEPS + 7
    records = [step_record(number) for number in range(1, count + 1)]
    evaluated = [{"event": "eval", "step": number, "loss": 2.0} for number in (1, 501, count)]
    at = {each["step"]: each for each in evaluated}
    mixed = [part for each in records for part in (each, at.get(each["step"])) if part]
    found = of(tmp_path, lines(*mixed))
    steps = [each["step"] for each in found.records if each["event"] == "step"]
    assert found.sampled
    assert len(steps) <= downsample_curves.MOST_STEPS + 1
    assert (steps[0], steps[-1]) == (1, count)
    assert [each for each in found.records if each["event"] == "eval"] == evaluated


def test_of_a_file_that_is_too_large_some_parts_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / PROGRESS
    path.write_bytes(lines(*(step_record(number) for number in range(1, 20_000))))
    size = path.stat().st_size
    with path.open("r+b") as file:  # a hole of gigabytes takes no room on the disk
        file.seek(3 << 30)
        file.write(b"\n" + lines(step_record(30_000)))
    found = read_records(tmp_path)
    steps = [each["step"] for each in found.records]
    assert found.sampled
    assert steps[-1] == 30_000
    assert len(steps) < size


def test_one_endless_line_is_not_kept(tmp_path: Path) -> None:
    endless = b'{"event": "step", "x": "' + b"y" * (3 * downsample_curves.BLOCK) + b'"}\n'
    found = of(tmp_path, lines(step_record(1)) + endless + lines(step_record(2)))
    assert found.records == [step_record(1), step_record(2)]
