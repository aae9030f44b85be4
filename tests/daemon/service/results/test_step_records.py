from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.service.results import step_records
from zerotoolsd.service.results.step_records import StepRecords, read_records
from zerotoolsd.supervisor.plan import PROGRESS


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def step(number: int) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 1.0 / number}


def of(run_dir: Path, data: bytes) -> StepRecords:
    (run_dir / PROGRESS).write_bytes(data)
    return read_records(run_dir)


def test_whole_lines_are_read_and_the_rest_may_follow(tmp_path: Path) -> None:
    data = lines(step(1), {"event": "eval", "step": 1}, step(2))
    found = of(tmp_path, data + b'{"event": "st')
    assert [each["event"] for each in found.records] == ["step", "eval", "step"]
    assert (found.end, found.sampled) == (len(data), False)


def test_there_is_nothing_yet(tmp_path: Path) -> None:
    assert read_records(tmp_path) == StepRecords([])
    assert of(tmp_path, b"") == StepRecords([])
    assert read_records(tmp_path / "gone") == StepRecords([])


def test_what_is_no_object_is_left_out(tmp_path: Path) -> None:
    odd = b"[]\n\xff\xfe\n" + b"[" * 5000 + b"\n{}{}\n\n3\n"
    assert of(tmp_path, odd + lines(step(7))).records == [step(7)]


@pytest.mark.parametrize("put", ["link", "pipe", "directory"])
def test_only_a_regular_file_is_read(tmp_path: Path, put: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(lines(step(1)))
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
    count = 2 * step_records.MOST_STEPS + 7
    records = [step(number) for number in range(1, count + 1)]
    evaluated = [{"event": "eval", "step": number, "loss": 2.0} for number in (1, 501, count)]
    at = {each["step"]: each for each in evaluated}
    mixed = [part for each in records for part in (each, at.get(each["step"])) if part]
    found = of(tmp_path, lines(*mixed))
    steps = [each["step"] for each in found.records if each["event"] == "step"]
    assert found.sampled
    assert len(steps) <= step_records.MOST_STEPS + 1
    assert (steps[0], steps[-1]) == (1, count)
    assert [each for each in found.records if each["event"] == "eval"] == evaluated


def test_of_a_file_that_is_too_large_some_parts_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / PROGRESS
    path.write_bytes(lines(*(step(number) for number in range(1, 20_000))))
    size = path.stat().st_size
    with path.open("r+b") as file:  # a hole of gigabytes takes no room on the disk
        file.seek(3 << 30)
        file.write(b"\n" + lines(step(30_000)))
    found = read_records(tmp_path)
    steps = [each["step"] for each in found.records]
    assert found.sampled
    assert steps[-1] == 30_000
    assert len(steps) < size


def test_one_endless_line_is_not_kept(tmp_path: Path) -> None:
    endless = b'{"event": "step", "x": "' + b"y" * (3 * step_records.BLOCK) + b'"}\n'
    found = of(tmp_path, lines(step(1)) + endless + lines(step(2)))
    assert found.records == [step(1), step(2)]
