from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.cli.top.made_looks import (
    GIB,
    NOW,
    PHASE,
    a_look,
    chosen,
    job_of,
    meaning_in,
    reported,
    text_of,
)
from tests.daemon.http.api.made_views import STEP, an_attempt
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.drawing import job_detail_rows
from zerotools.cli.top.drawing.job_detail_rows import (
    SPEED,
    checkpoint_lines,
    detail_lines,
    job_page,
)
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.reading.disk_reader import CheckpointDirectory
from zerotools.cli.top.reading.job_details import JobDetails, KeptCheckpoint
from zerotools.cli.top.reading.job_reports import JobReports, LongCurve, ReportedCheckpoint

FULL: dict[str, Any] = {**STEP, "mfu": 0.41, "skipped_steps": 2, "loss_scale": 65536}


def texts(job: Job, rows: int, columns: int = 80, **changes: Any) -> list[str]:
    look = a_look(job, chosen=chosen(job), **changes)
    lines = detail_lines(look, job, columns, rows, NOW)
    assert all(width(line) <= columns for line in lines)
    return [text_of(line) for line in lines]


def test_seven_rows_hold_what_matters() -> None:
    lines = texts(job_of(3, progress=FULL), 7)
    assert lines[0].startswith("── job 3 (tiny) ──")
    assert lines[0].endswith(" running 1h01m · ada ─")
    assert lines[1].startswith("trains, the last step 2 s ago   2 ranks on CPU")
    assert lines[2].startswith("15,300 tokens/s   MFU 41.0 %   0.5 s/step   2 skipped   grad 1.25")
    assert lines[3] == "saved step 1000 ✓ verified  4 min ago  13.0 GiB in 3s   and 2 older"
    assert lines[4].startswith("loss █")
    assert lines[5:] == ["a line", "the last line"]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 20, 40])
@pytest.mark.parametrize("columns", [40, 60, 97, 140])
def test_it_fits_into_any_room(rows: int, columns: int) -> None:
    assert len(texts(job_of(3, progress=FULL), rows, columns)) <= rows


def test_a_tall_screen_has_a_chart_and_more_checkpoints() -> None:
    lines = texts(job_of(3, progress=FULL), 24, 110)
    assert sum(" ✓ verified  4 min ago" in line for line in lines) == 3
    assert any("│⣧" in line or "│⡇" in line for line in lines)
    assert lines[-1] == "the last line"
    beside = detail_lines(
        a_look(job_of(3), chosen=chosen(job_of(3))), job_of(3), 90, 40, NOW, logged=False
    )
    assert len(beside) == 40
    assert "speed 15.3k tokens/s" in "\n".join(map(text_of, beside))


def test_the_phase_has_its_time() -> None:
    saving = job_of(3, phase={**PHASE, "name": "saving", "last_step": NOW - 41})
    assert texts(saving, 7)[1].startswith("saving, the last step 41 s ago")
    loading = {"name": "loading", "doing": "loading the weights", "since": NOW - 720}
    job = job_of(3, phase={**PHASE, **loading, "last_step": None}, reason="loading the weights")
    assert texts(job, 7)[1].startswith("loading the weights for 12 min 00 s")
    starts = job_of(3, phase={**PHASE, "last_step": None})
    assert texts(starts, 7)[1].startswith("trains   ")
    late = job_of(3, phase={**PHASE, "late": True, "last_step": NOW - 60})
    line = detail_lines(a_look(late), late, 80, 7, NOW)[1]
    assert meaning_in(line, "no step for 1 min 00 s") == "warning"


def test_how_it_ended() -> None:
    job = job_of(3, "failed", reason="rank 1: out of memory", started=NOW - 90, ended=NOW - 60)
    lines = texts(job, 7)
    assert lines[0].endswith(" failed 1 min ago · ada ─")
    assert lines[1].startswith("failed, after 30 s: rank 1: out of memory")


def test_gpus_attempt_and_priority_stand_in_the_title_as_far_as_they_fit() -> None:
    gpus = tuple(f"GPU-fake-{n}" for n in (0, 1, 2, 5))
    attempts = (an_attempt(1, ended=1.0), an_attempt(2, gpu_uuids=gpus))
    job = job_of(3, attempts=attempts, priority=2)
    assert texts(job, 7, 110)[0].endswith(
        " running 1h01m · GPU 0-2,5 · attempt 2 · priority +2 · ada ─"
    )
    assert texts(job, 7, 50)[0].endswith(" running 1h01m · GPU 0-2,5 ─")


def test_curves_of_another_job_are_not_shown() -> None:
    job = job_of(3)
    look = a_look(job, chosen=chosen(job_of(4)))
    assert not any("loss █" in text_of(line) for line in detail_lines(look, job, 80, 9, NOW))


def test_what_could_not_be_read_is_said() -> None:
    job = job_of(3)
    look = a_look(
        job, chosen=JobDetails(3, trouble="only the job's owner and administrators see the rest")
    )
    lines = detail_lines(look, job, 80, 9, NOW)
    assert meaning_in(lines[3], "owner") == "warning"


def test_of_somebody_elses_job_only_what_is_seen_is_shown() -> None:
    job = {**job_of(9, name="job-9", phase=None, progress=None), "masked": True, "spec": {}}
    found = JobDetails(9, trouble="only the job's owner and administrators see the rest")
    lines = [text_of(line) for line in detail_lines(a_look(job, chosen=found), job, 80, 9, NOW)]
    assert lines[1:] == ["host peak 6.0 GiB", found.trouble]


def test_errors_in_a_log_stand_out() -> None:
    job = job_of(3)
    log = ["fine", "WARNING: careful", "torch.OutOfMemoryError: x \x1b[31mred"]
    look = a_look(job, chosen=chosen(job, log))
    *_, first, second, third = detail_lines(look, job, 80, 9, NOW)
    assert [first[0][1], second[0][1], third[0][1]] == ["quiet", "warning", "bad"]
    assert "\x1b" not in text_of(third)


def kept(**changes: Any) -> KeptCheckpoint:
    seen = changes.pop("seen", CheckpointDirectory(NOW - 60, is_thinned=False))
    usual = ReportedCheckpoint(40, "/out/40", NOW - 240, 13 * GIB, 3.2, "at_save")
    return KeptCheckpoint(replace(usual, **changes), seen)


def test_checkpoints_say_whether_they_were_verified() -> None:
    (line,) = checkpoint_lines([kept(verified=None, not_verified="switched off")], 80, 1, NOW)
    assert "? not verified: switched off" in text_of(line)
    (line,) = checkpoint_lines([kept(seen=CheckpointDirectory(1.0, is_thinned=True))], 80, 1, NOW)
    assert "weights alone (thinned)" in text_of(line)
    (line,) = checkpoint_lines([kept(verified=None, time=None, seconds=None)], 80, 1, NOW)
    assert text_of(line) == "saved step 40 no report about it  1 min ago"
    (line,) = checkpoint_lines([], 80, 1, NOW)
    assert text_of(line) == "saved nothing yet"
    assert len(checkpoint_lines([kept()] * 5, 80, 3, NOW)) == 3


def test_the_loss_in_one_line_with_its_evaluation() -> None:
    line = job_detail_rows.loss_line(reported(), 80)
    assert text_of(line).startswith("loss █")
    assert "5.0000 → 0.6295   ● eval 0.6546" in text_of(line)
    assert width(line) <= 80
    assert text_of(job_detail_rows.eval_line(reported(), 80)).startswith("eval █")
    assert text_of(job_detail_rows.speed_line(reported().speed, 80)).endswith(" 15.3k tokens/s")
    assert width(job_detail_rows.loss_line(reported(), 20)) <= 20


def test_a_speed_that_hardly_changes_is_no_bar() -> None:
    curve = LongCurve()
    for step in range(1, 300):
        curve.add(step, 71_000.0 + step)
    line = text_of(job_detail_rows.speed_line(curve.seen(), 80))
    assert line == "speed 71.3k tokens/s, on average 71.0k to 71.3k"
    for step in range(300, 310):
        curve.add(step, 20_000.0)
    line = text_of(job_detail_rows.speed_line(curve.seen(), 80))
    assert line.startswith("speed ████")
    assert line.endswith(" 20.0k tokens/s")


def test_a_long_reason_is_on_the_page_of_a_job_once() -> None:
    stall = "rank 1 waits for rank 0, which has been in step 15 for 30 min " * 2
    phase = {**PHASE, "last_step": NOW - 1800, "stalled": True, "stall": stall.strip()}
    job = job_of(3, progress=FULL, phase=phase)
    page = [text_of(line) for line in job_page(a_look(job, chosen=chosen(job)), job, 90, 30, NOW)]
    assert sum("rank 1 waits for rank 0" in line for line in page) == 1
    assert not any("tokens/s" in line for line in page[:9]), "it makes no step"


def test_the_page_of_a_job_has_its_progress() -> None:
    job = job_of(3, progress={**STEP, "step": 1_200, "steps": 40_000, "seconds_left": 7500.0})
    look = a_look({**job, "spec": {}}, chosen=chosen(job))
    for columns in (40, 80, 120):
        lines = job_page(look, {**job, "spec": {}}, columns, 30, NOW)
        assert all(width(line) <= columns for line in lines)
        text = text_of(lines[1])
        assert text.startswith("progress   ")
        assert columns == 40 or text.endswith(" 3%  step 1,200 of 40,000   2h05m left")
    ended = job_of(3, "succeeded", progress=STEP)
    assert "progress" not in "".join(map(text_of, job_page(look, ended, 80, 30, NOW)))


def test_other_curves_are_next_to_each_other_below_the_loss() -> None:
    job = job_of(3, progress=FULL)
    speed, norm, rate, flat = (LongCurve() for _ in range(4))
    for step in range(1, 1000):
        speed.add(step, 15_300.0 if step > 500 else 10_000.0)
        norm.add(step, 3.0 + step % 7)
        rate.add(step, 1e-3 / step)
        flat.add(step, 1e-3)
    curves = replace(reported(), grad_norm=norm.seen(), rate=rate.seen(), speed=speed.seen())
    found = replace(chosen(job), log=(), reported=curves)

    def titles(columns: int, **changes: Any) -> str:
        shown = replace(found, reported=replace(curves, **changes))
        lines = job_page(a_look(job, chosen=shown), job, columns, 38, NOW)
        assert len(lines) == 38, "the whole page is used"
        assert all(width(line) <= columns for line in lines)
        (title,) = (text for line in lines if (text := text_of(line)).startswith("speed "))
        return title.rstrip()

    assert titles(60).split() == ["speed", "15.3k", "tokens/s"]
    assert titles(80).endswith("   gradient norm 8")
    assert titles(120).endswith("   learning rate 1.0e-06")
    assert "rate" not in titles(120, rate=flat.seen()), "an even rate is among the figures"
    even = {"speed": reported().speed, "rate": flat.seen(), "grad_norm": flat.seen()}
    assert titles(120, **even) == "speed 15.3k tokens/s"


def test_without_a_log_the_chart_has_its_rows() -> None:
    job = job_of(3, progress=FULL)
    look = a_look(job, chosen=replace(chosen(job), log=()))
    assert len(detail_lines(look, job, 110, 24, NOW)) > len(detail_lines(look, job, 110, 20, NOW))


def test_a_chart_has_its_rows_and_the_evaluations_are_points_in_it() -> None:
    for columns, rows in ((60, 6), (110, 18), (100, 40)):
        lines = job_detail_rows.loss_chart(reported(), columns, rows)
        assert len(lines) == rows
        assert all(width(line) <= columns for line in lines)
    text = "\n".join(map(text_of, lines))
    assert "loss 0.6295   lowest 0.6295 at step 1000   ● eval 0.6546 at step 1000" in text
    assert text.count("●") == 1 + 4
    assert meaning_in(lines[-3], "●") == "evals"
    assert text_of(lines[-1]).split() == ["step", "1", "250", "500", "750", "1000"]


def test_a_flat_loss_is_one_line() -> None:
    loss, evals = LongCurve(), LongCurve()
    for step in range(1, 90):
        loss.add(step, 3.0)
    flat = JobReports(loss=loss.seen())
    assert list(map(text_of, job_detail_rows.loss_chart(flat, 80, 14))) == [
        "loss 3.0000, unchanged"
    ]
    evals.add(50, 3.5)
    (line,) = job_detail_rows.loss_chart(replace(flat, eval_loss=evals.seen()), 80, 14)
    assert text_of(line) == "loss 3.0000, unchanged   ● eval 3.5000 at step 50"
    evals.add(60, 3.0)
    assert len(job_detail_rows.loss_chart(replace(flat, eval_loss=evals.seen()), 80, 14)) == 14
    one = LongCurve()
    one.add(1, 3.0)
    (line,) = job_detail_rows.loss_chart(JobReports(loss=one.seen()), 80, 14)
    assert text_of(line) == "loss 3.0000"


@pytest.mark.parametrize("logged", [True, False])
def test_a_job_that_reports_no_tokens_has_no_speed(logged: bool) -> None:
    job = job_of(3, progress=FULL)
    found = chosen(job)
    silent = replace(found, reported=replace(found.reported, speed=JobReports().speed))

    def shown(details: JobDetails) -> str:
        lines = detail_lines(a_look(job, chosen=details), job, 110, 40, NOW, logged=logged)
        return "\n".join(map(text_of, lines))

    assert "\nspeed " in shown(found)
    assert "\nspeed " not in shown(silent)


def test_the_speed_begins_at_nothing() -> None:
    lines = job_detail_rows.curve_chart(SPEED, reported().speed, 60, 8)
    assert len(lines) == 8
    assert text_of(lines[-2]).split("│")[0].strip() == "0"


def test_a_chart_is_kept_while_the_curve_stays_the_same() -> None:
    found = reported()
    before = job_detail_rows.loss_chart(found, 60, 8)[1:]
    assert all(
        a is b for a, b in zip(before, job_detail_rows.loss_chart(found, 60, 8)[1:], strict=True)
    )


def test_nothing_is_no_chart() -> None:
    assert job_detail_rows.loss_chart(JobReports(), 60, 8) == []
    assert job_detail_rows.curve_chart(SPEED, JobReports().speed, 60, 8) == []
