from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.slurm.job_directory import (
    JobDirectory,
    job_directories,
    new_job_directory,
    read_record,
    slurm_home,
    write_record,
)


def test_the_home_is_where_the_user_says() -> None:
    assert slurm_home({"ZEROTOOLS_SLURM_DIR": "/shared/z"}) == Path("/shared/z")
    assert slurm_home({"XDG_STATE_HOME": "/s"}) == Path("/s/zerotools/slurm")
    assert slurm_home({}).parts[-4:] == (".local", "state", "zerotools", "slurm")


def test_a_submission_is_made_by_one_alone(tmp_path: Path) -> None:
    found = new_job_directory(tmp_path / "home", "my job", {"name": "my job"}, None)
    assert found.new_submission("a") == 1
    (found.path / "submissions" / "2").mkdir()
    assert found.new_submission("b") == 3
    assert found.submissions() == [1, 2, 3]
    assert (found.submission(3) or {})["token"] == "b"
    found.record_number(3, "17")
    assert (found.submission(3) or {})["job_id"] == "17"


def test_a_record_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_record(path, {})
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_records_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text in ("", '{"a": 1', "[]", "null", "\x00"):
        path.write_text(text)
        assert read_record(path) is None
    path.unlink()
    path.mkdir()
    assert read_record(path) is None
    write_record(tmp_path / "s.json", {"a": 1})
    assert read_record(tmp_path / "s.json") == {"a": 1}
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_what_is_no_job_is_passed_over(tmp_path: Path) -> None:
    found = new_job_directory(tmp_path, "a", {}, None)
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    assert job_directories(tmp_path) == [found]
    assert job_directories(tmp_path / "nowhere") == []
    assert JobDirectory(tmp_path / "other").submissions() == []


def test_a_place_that_slurm_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="Slurm does not allow %"):
        new_job_directory(tmp_path / "100%", "a", {}, None)
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest, match="set ZEROTOOLS_SLURM_DIR"):
        new_job_directory(tmp_path / "file" / "x", "a", {}, None)
