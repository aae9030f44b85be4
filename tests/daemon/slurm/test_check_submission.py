from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.jobs.jobfile_tables.test_slurm import job
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotoolsd.slurm import check_submission


def test_files_that_are_not_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    spec = job({}, model={"path": str(tmp_path / "none")}, data={"text": [str(text)]})
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(job_to_dict(spec))))
    assert check_submission.main() == 2
    said = capsys.readouterr().err
    assert f"model.path = {tmp_path / 'none'}" in said
    assert str(text) in said


def test_a_job_whose_files_are_there_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"command": ["sh", "-c", "true"], "directory": str(tmp_path)}
    spec = job({}, engine="script", script=tree, model=None, data=None, train=None)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(job_to_dict(spec))))
    assert check_submission.main() == 0
