"""Who a run is for trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotoolsd.trainer.reporting.trackers.identity import TRACKED, tracked_run

JOB, OTHER = Path("/state/jobs/7"), Path("/state/jobs/8")


def test_a_run_stays_who_it_is_over_restarts_and_resumes(tmp_path: Path) -> None:
    first = tracked_run(tmp_path, JOB, goes_on=False)
    assert tracked_run(tmp_path, JOB, goes_on=False) == first
    assert tracked_run(tmp_path, JOB, goes_on=True) == first
    assert tracked_run(tmp_path, OTHER, goes_on=True) == first


def test_another_job_that_begins_there_is_another_run(tmp_path: Path) -> None:
    first = tracked_run(tmp_path, JOB, goes_on=False)
    second = tracked_run(tmp_path, OTHER, goes_on=False)
    assert second.id != first.id
    assert tracked_run(tmp_path, OTHER, goes_on=False) == second


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": 5, "job": "x"}', '{"id": "../../../x1", "job": "x"}']
)
def test_a_file_of_somebody_else_is_no_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKED).write_text(text)
    found = tracked_run(tmp_path, JOB, goes_on=True)
    assert found.job == str(JOB)
    assert found.id.isalnum()
    assert [path.name for path in tmp_path.iterdir()] == [TRACKED]
