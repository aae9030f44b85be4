from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.service.results.prediction_rows import LONGEST_TEXT, prediction_rows


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for step, count in ((20, 2), (40, 5)):
        rows = (row(number, step=step) for number in range(count))
        write(tmp_path, step, b"".join(json.dumps(each).encode() + b"\n" for each in rows))
    return tmp_path


def row(number: int, **more: Any) -> dict[str, Any]:
    texts = {"prompt": f"p{number}", "reference": f"r{number}", "prediction": f"g{number}"}
    return {"example": number, **texts, **more}


def write(output: Path, step: int, data: bytes) -> None:
    path = output / "predictions" / f"step-{step:08d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def test_the_newest_where_no_step_is_named(output: Path) -> None:
    found = prediction_rows(str(output), None, 1, 3)
    assert (found["steps"], found["step"], found["first"]) == ([20, 40], 40, 1)
    assert [each["example"] for each in found["rows"]] == [1, 2, 3]
    assert found["rows"][0] == row(1)
    assert found["more"]


def test_a_step_and_the_end_of_it(output: Path) -> None:
    found = prediction_rows(str(output), 20, 0, 2)
    assert ([each["example"] for each in found["rows"]], found["more"]) == ([0, 1], False)
    assert prediction_rows(str(output), 20, 5, 2)["rows"] == []


def test_there_are_none(tmp_path: Path, output: Path) -> None:
    nothing = {"steps": [], "step": None, "first": 0, "rows": [], "more": False}
    assert prediction_rows(str(tmp_path / "x"), None, 0, 5) == nothing
    assert prediction_rows(str(output), 30, 0, 5)["rows"] == []


def test_odd_files_and_odd_rows(output: Path) -> None:
    odd = [b"[]", b"\xff", b"{", json.dumps(row(7, prompt=3, reference="x" * 9999)).encode()]
    write(output, 60, b"\n".join(odd) + b"\n" + json.dumps(row(8, example="8")).encode())
    first, last = prediction_rows(str(output), 60, 0, 5)["rows"]
    assert (first["prompt"], len(first["reference"])) == (None, LONGEST_TEXT)
    assert (last["example"], last["prompt"]) == (None, "p8")
    os.mkfifo(output / "predictions" / "step-00000080.jsonl")
    (output / "predictions" / "step-00000100.jsonl").symlink_to("/etc/passwd")
    (output / "predictions" / "notes.txt").touch()
    for step in (80, 100):
        assert prediction_rows(str(output), step, 0, 5)["rows"] == []
