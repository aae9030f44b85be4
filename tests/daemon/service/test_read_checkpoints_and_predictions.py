from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import JOB
from tests.runs.records import seal
from zerotools.core.errors import BadRequest
from zerotools.runs import find_job_checkpoints
from zerotoolsd.service.read_checkpoints_and_predictions import (
    LONGEST_TEXT,
    SIZES,
    checkpoint_picture,
    checkpoint_tree,
    prediction_rows,
)


def save(output: Path, step: int, *, size: int = 10) -> Path:
    directory = output / find_job_checkpoints.directory_name(step)
    (directory / "dcp").mkdir(parents=True)
    (directory / "dcp" / "__0_0.distcp").write_bytes(b"x" * size)
    return directory


def test_the_newest_first_with_what_each_holds(tmp_path: Path) -> None:
    for step in (40, 80, 120):
        seal(save(tmp_path, step, size=step))
    find_job_checkpoints.write_hint(tmp_path, find_job_checkpoints.LATEST, "step-00000120")
    find_job_checkpoints.write_hint(tmp_path, find_job_checkpoints.BEST, "step-00000080")
    (tmp_path / ".tmp-step-00000160").mkdir()
    (tmp_path / "notes").mkdir()
    tree = checkpoint_tree(str(tmp_path))
    assert json.loads(json.dumps(tree))["output_dir"] == str(tmp_path)
    found = tree["checkpoints"]
    assert [each["step"] for each in found] == [120, 80, 40]
    assert [each["hints"] for each in found] == [("latest",), ("best",), ()]
    assert all((each["checked"], each["problem"]) == (SIZES, None) for each in found)
    assert (found[0]["world_size"], found[0]["file_count"]) == (2, 2)
    assert ("dcp/__0_0.distcp", 120) in found[0]["files"]
    assert found[0]["size_bytes"] == sum(size for _, size in found[0]["files"])
    assert tree["unfinished"] == [".tmp-step-00000160"]


def test_a_checkpoint_is_drawn_by_its_step() -> None:
    page = checkpoint_picture(str(JOB.parent), 3)
    assert page.startswith("<!doctype html>")
    assert JOB.name in page
    with pytest.raises(BadRequest, match="step-00000007"):
        checkpoint_picture(str(JOB.parent), 7)


def test_what_is_wrong_is_said_of_each(tmp_path: Path) -> None:
    short = seal(save(tmp_path, 1))
    (short / "dcp" / "__0_0.distcp").write_bytes(b"")
    os.unlink(seal(save(tmp_path, 2)) / "job.json")  # noqa: PTH108
    save(tmp_path, 3)
    found = {each["step"]: each for each in checkpoint_tree(str(tmp_path))["checkpoints"]}
    assert "has 0 bytes" in found[1]["problem"]
    assert "job.json is missing" in found[2]["problem"]
    assert "was never finished" in found[3]["problem"]
    assert [found[step]["checked"] for step in (1, 2, 3)] == [None, None, None]


def test_after_some_time_files_are_not_compared_any_more(tmp_path: Path) -> None:
    seal(save(tmp_path, 1))
    (found,) = checkpoint_tree(str(tmp_path), seconds=-1)["checkpoints"]
    assert (found["checked"], found["problem"], found["world_size"]) == (None, None, None)
    assert found["size_bytes"] > 0


def test_there_is_none_yet(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        tree = checkpoint_tree(str(path))
        assert (tree["checkpoints"], tree["more"], tree["unfinished"]) == ([], 0, [])


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
