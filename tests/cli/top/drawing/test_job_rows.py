from __future__ import annotations

import pytest

from tests.cli.top.made_looks import NOW, PHASE, job_of, meaning_in, text_of
from tests.daemon.http.api.made_views import STEP
from zerotools.cli.job_views.describe_job import Job, remaining_seconds
from zerotools.cli.top.drawing.job_rows import (
    MARK,
    JobColumns,
    job_header,
    job_line,
    saved_step,
)
from zerotools.cli.top.drawing.styled_lines import CURSOR, Line, width


def line_of(job: Job, columns: int = 80, *, is_chosen: bool = False) -> Line:
    return job_line(
        job, JobColumns.of(columns, [job], NOW), columns, NOW, mark=MARK if is_chosen else " "
    )


def test_a_job_that_trains_has_a_bar_and_the_time_that_is_left() -> None:
    line = line_of(job_of(3))
    text = text_of(line)
    assert "3 tiny" in text
    assert "running" in text
    assert " 30%" in text
    assert "14s" in text
    assert "2.5000" in text
    assert meaning_in(line, "running") == "busy"


@pytest.mark.parametrize("columns", [40, 60, 66, 80, 100, 140, 200])
@pytest.mark.parametrize("name", ["tiny", "数据清洗-长名字的任务" * 3, "x" * 90, ""])
def test_every_line_is_as_wide_as_the_screen(columns: int, name: str) -> None:
    job = job_of(12345, name=name, user="a-long-user-name")
    widths = JobColumns.of(columns, [job], NOW)
    assert width(job_header(widths, columns, "1-5/99")) == columns
    for state in ("running", "queued", "failed"):
        assert width(line_of({**job, "state": state}, columns)) == columns


@pytest.mark.parametrize(
    ("columns", "part", "words"),
    [
        (40, "1-6/8", "job name 1-6/8 state progress"),
        (66, "1-6/8", "job 1-6/8 owner state progress left loss saved"),
        (66, "46-50/100", "job name owner state 46-50/100 left loss saved"),
        (80, "1-6/8", "job name 1-6/8 owner state progress left loss saved tokens/s"),
        (80, "46-50/100", "job name 46-50/100 owner state progress left loss saved"),
        (140, "1-6/8", "job name 1-6/8 owner state progress left loss saved tokens/s step ranks"),
    ],
)
def test_the_header_has_the_shown_part_of_the_jobs(columns: int, part: str, words: str) -> None:
    widths = JobColumns.of(columns, [job_of(3)], NOW, part)
    assert text_of(job_header(widths, columns, part)).split() == words.split()


def test_the_header_stands_above_its_columns() -> None:
    job = job_of(3)
    widths = JobColumns.of(140, [job], NOW)
    header, line = text_of(job_header(widths, 140, "")), text_of(line_of(job, 140))
    for word, value in (
        ("left", "14s"),
        ("loss", "2.5000"),
        ("tokens/s", "15.3k"),
        ("step", "12/40"),
    ):
        assert header.index(f" {word}") + len(word) == line.index(f" {value}") + len(value)
    assert header.index("owner") == line.index("ada")
    assert header.index("state") == line.index("running")


def test_one_that_waits_or_is_over_says_why() -> None:
    waits = line_of(job_of(4, "queued", reason="needs 2 x 61.2 GiB, GPU 1 has 23.4"))
    assert "queued    needs 2 x 61.2 GiB" in text_of(waits)
    failed = line_of(job_of(5, "failed", reason="rank 1: CUDA out of memory", ended=NOW))
    assert "failed    rank 1: CUDA" in text_of(failed)
    assert meaning_in(failed, "CUDA") == "bad"
    over = line_of(job_of(6, "succeeded", started=NOW - 60, ended=NOW, progress=STEP))
    assert "succeeded at step 12 of 40, after 1 min 00 s" in text_of(over)
    loading = job_of(7, progress=None, phase={**PHASE, "doing": "loads", "since": NOW - 60})
    assert "loads" not in text_of(line_of(loading))
    assert "loads for 1 min 00 s" in text_of(line_of({**loading, "reason": "loads"}))
    imports = job_of(7, progress=None, phase={**PHASE, "name": "importing", "last_step": None})
    assert "starting  importing" in text_of(line_of({**imports, "spec": {}}))


def test_the_job_under_the_cursor_has_a_mark_and_not_a_colour_alone() -> None:
    line = line_of(job_of(3), is_chosen=True)
    assert text_of(line).startswith("▸ ")
    assert all(meaning.startswith(CURSOR) for _, meaning in line)
    assert meaning_in(line, "running") == f"{CURSOR}busy"


@pytest.mark.parametrize("seconds", [None, "x", float("nan"), True, 1e300, -1.0, [1]])
def test_what_a_job_reports_may_be_anything(seconds: object) -> None:
    job = job_of(3, progress={**STEP, "step_seconds": seconds, "loss": seconds, "mfu": seconds})
    assert remaining_seconds(job) is None
    assert width(line_of(job)) == 80


def test_a_verified_checkpoint_is_told_from_one_that_is_not() -> None:
    saved = {"step": 40, "path": "/nowhere", "verified": None, "not_verified": None}
    for changes, shown in (
        ({"verified": {"how": "at_save", "time": 1.0}}, ("40 ✓", "good")),
        ({"not_verified": "off"}, ("40 ?", "warning")),
        ({}, ("40", "")),
        ({"step": "x"}, ("-", "quiet")),
    ):
        assert saved_step(job_of(3, latest_checkpoint={**saved, **changes})) == shown
    assert saved_step(job_of(3)) == ("-", "quiet")
