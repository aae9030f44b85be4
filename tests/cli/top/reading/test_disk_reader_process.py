from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from zerotools.cli.top.reading.disk_reader_process import answer, main
from zerotools.runs.thinning_record import THINNED


def test_a_disk_is_that_of_the_nearest_directory_that_is_there(tmp_path: Path) -> None:
    found = answer({"disk": str(tmp_path / "not" / "yet")})
    status = os.statvfs(tmp_path)
    assert found["total_bytes"] == status.f_blocks * status.f_frsize
    assert tmp_path.is_relative_to(found["at"])
    assert os.path.ismount(found["at"])


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "shm").symlink_to("/dev/shm")
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no mount here")
    assert answer({"disk": str(tmp_path / "shm" / "x")})["at"] == "/dev/shm"


def test_checkpoints_that_are_there(tmp_path: Path) -> None:
    whole, thinned = tmp_path / "step-1", tmp_path / "step-2"
    for each in (whole, thinned):
        each.mkdir()
        os.utime(each, (5.0, 5.0))
    (thinned / THINNED).write_text("{}")
    os.utime(thinned, (5.0, 5.0))
    asked = [str(each) for each in (whole, thinned, tmp_path / "gone", whole / "x" / "y")]
    assert answer({"saved": asked})["saved"] == [
        {"time": 5.0, "is_thinned": False},
        {"time": 5.0, "is_thinned": True},
        None,
        None,
    ]


def test_what_cannot_be_looked_at_says_why() -> None:
    for question in ({"disk": "/" + "x" * 300}, {"saved": ["/" + "x" * 300]}):
        assert "long" in answer(question)["why"]
    assert "null" in answer({"saved": ["/\0"]})["why"]


def test_it_answers_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"saved": [str(tmp_path)]}) + "\n"))
    main()
    ready, said = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {}
    assert len(said["saved"]) == 1
