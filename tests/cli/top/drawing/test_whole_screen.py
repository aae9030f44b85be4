from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fake_gpu_probe import fake_gpu
from tests.cli.top.made_looks import (
    NOW,
    PHASE,
    a_look,
    chosen,
    eight_gpus,
    job_of,
    meaning_in,
    text_of,
)
from tests.daemon.http.api.made_views import STEP, an_attempt
from tests.matrices import examples
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.drawing.help_and_log_pages import error_lines
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.drawing.view_state import HELP, JOB, LOG, ViewState
from zerotools.cli.top.drawing.whole_screen import DrawnScreen, draw_screen
from zerotools.cli.top.reading.job_details import LogLines
from zerotools.cli.top.reading.read_screen_values import ScreenData

FIVE = (
    job_of(3),
    job_of(4, name="lora", user="bob"),
    job_of(5, "queued", "数据清洗-长名字", reason="needs 2 GPUs, and 1 is free"),
    job_of(6, "failed", "\x1b[2Jhostile\u202e", reason="rank 1: out of memory", ended=NOW - 60),
    job_of(7, "succeeded", "done", ended=NOW - 60),
)
STATE = ViewState(chosen=3)


def full_look(jobs: tuple[Job, ...] = FIVE) -> ScreenData:
    return a_look(*jobs, chosen=chosen(jobs[0], [f"line {n}" for n in range(60)]))


def draw(
    columns: int, rows: int, look: ScreenData | None = None, state: ViewState = STATE
) -> DrawnScreen:
    return draw_screen(look or full_look(), None, state, columns, rows, NOW)


def texts(drawn: DrawnScreen) -> list[str]:
    return [text_of(line).rstrip() for line in drawn.lines]


def test_eight_gpus_and_five_jobs_leave_seven_rows_for_details_in_80x24() -> None:
    lines = texts(draw(80, 24))
    assert len(lines) == 24
    assert [line[:2] for line in lines[:8]] == [f" {n}" for n in range(8)]
    assert lines[8].startswith("CPU ")
    assert lines[10].split()[:4] == ["job", "name", "owner", "state"]
    assert lines[11].startswith("▸   3 tiny")
    assert [line.split()[0] for line in lines[12:16]] == ["4", "5", "6", "7"]
    assert lines[16].startswith("── job 3 (tiny) ")
    assert lines[20].startswith("loss █")
    assert lines[21:23] == ["line 58", "line 59"]
    assert lines[23].startswith("? help")


def test_many_gpus_leave_half_of_the_rows_to_jobs() -> None:
    many = full_look(tuple(job_of(number) for number in range(3, 40)))
    many = replace(many, snapshot=replace(many.snapshot, gpus=tuple(map(fake_gpu, range(64)))))

    def parts(rows: int, look: ScreenData) -> tuple[int, int]:
        drawn = draw(120, rows, look)
        gpus = [line for line in texts(drawn) if re.match(r" ?\d+ \S+ +0.5/80G", line)]
        return len(gpus), len(drawn.jobs)

    assert parts(24, many) == (9, 5)
    assert parts(40, many) == (16, 10)
    assert parts(40, replace(many, jobs=many.jobs[:2])) == (25, 2)


def test_a_long_name_leaves_the_state_and_the_gpus_of_the_chosen_job() -> None:
    look = full_look((job_of(3, name="a-long-name-" * 20), *FIVE[1:]))
    (line,) = [line for line in texts(draw(80, 24, look)) if line.startswith("── job 3")]
    assert "a-long-name-" in line
    assert line.endswith("running 1h01m · ada ─")


def test_charts_of_all_gpus_are_drawn_where_rows_are_free() -> None:
    past = {"gpu.GPU-fake-0.utilization_percent": [50.0, 90.0]}
    look = replace(full_look(), past=past, is_hour=True)

    def has_chart(columns: int, rows: int, jobs: tuple[Job, ...] = FIVE) -> bool:
        shown = replace(look, jobs=jobs)
        return any(line.startswith("busy 90%") for line in texts(draw(columns, rows, shown)))

    assert has_chart(120, 40)
    assert has_chart(200, 60)
    assert not has_chart(99, 40)
    assert not has_chart(120, 37)
    assert not has_chart(120, 40, tuple(job_of(number) for number in range(3, 20)))


def test_a_wide_screen_has_two_columns_that_are_full() -> None:
    lines = texts(draw(200, 60))
    assert len(lines) == 60
    assert lines[0].startswith("zerotools top  gpu1   8 × Fake H100   jobs: 2 running, 1 waiting")
    text = "\n".join(lines)
    for part in ("processes on GPUs", "── log ", "loss 0.6295", "speed 15.3k", "line 59"):
        assert part in text
    assert sum(" │ " in line for line in lines) >= 40
    assert lines[-2].endswith(" │ speed 15.3k tokens/s")
    assert len(lines[-3].split(" │ ")[1]) > 40  # the chart goes down to the row above


def test_the_page_of_a_job_has_its_whole_reason_its_paths_and_its_attempts() -> None:
    reason = " ".join(f"word-{n}" for n in range(30))
    crash = replace(an_attempt(1), state="ended", cause="rank 1: out of memory")
    job = job_of(3, reason=reason, phase=None, attempts=(crash, an_attempt(2)))
    look = a_look(job, chosen=chosen(job, [f"line {n}" for n in range(60)]))
    state = replace(STATE, page=JOB)
    for columns, rows in ((80, 24), (60, 15), (200, 60)):
        drawn = draw(columns, rows, look, state)
        lines = texts(drawn)
        assert len(lines) == rows
        assert all(width(line) <= columns for line in drawn.lines)
        text = " ".join(" ".join(lines).split())
        assert all(f"word-{n}" in text for n in range(30))
        assert "output /state/jobs/3/output" in text
        assert "attempt 1 rank 1: out of memory" in text
        assert lines[-1].endswith("q back")
    assert "line 59" in lines


def test_a_click_on_the_last_line_is_the_key_that_is_named_there() -> None:
    drawn = draw(80, 24)
    foot = text_of(drawn.lines[-1])
    assert foot.rstrip().endswith("q quit"), "however narrow"
    for word, key in (("help", "question_mark"), ("page", "enter"), ("hold", "p"), ("quit", "q")):
        assert drawn.key_at(foot.index(word), 23) == key
    assert drawn.key_at(0, 22) is None
    asks = draw(80, 24, None, replace(STATE, question="Cancel job 3?"))
    assert asks.key_at(text_of(asks.lines[-1]).index("yes"), 23) == "y"
    assert text_of(draw(60, 24).lines[-1]).rstrip().endswith("q quit")


@pytest.mark.parametrize("columns", range(40, 130))
def test_the_last_line_has_whole_keys(columns: int) -> None:
    for only in ("", "lo", "llama"):
        foot = text_of(draw(columns, 24, state=replace(STATE, only=only)).lines[-1]).rstrip()
        assert foot.endswith("  q quit")
        assert ("+" in foot) is ("+- prio" in foot)


def test_errors_of_a_log_are_shown_with_the_lines_after_them() -> None:
    lines = ("step 1", "WARNING: slow", "a", "b", "c", "Traceback (most recent call last):", "d")
    assert error_lines(lines) == ("WARNING: slow", "a", "b", *lines[5:])
    log = LogLines(3, 0, "log of job 3", lines)
    state = replace(STATE, page=LOG, errors=True)
    shown = texts(draw_screen(full_look(), log, state, 80, 24, NOW))
    assert shown[0].startswith("── errors and warnings in the log of job 3 ")
    assert shown[1:4] == ["WARNING: slow", "a", "b"]
    assert "e all" in shown[-1]
    none = draw_screen(full_look(), LogLines(3, 0, "log", ("fine",)), state, 80, 24, NOW)
    assert texts(none)[1] == "this log has no errors or warnings"


def test_a_log_shows_the_lines_with_some_words() -> None:
    lines = ("step 1 loss 3.0", "saved step 1", "step 2 loss nan", "WARNING: loss is nan")
    log = LogLines(3, 0, "log of job 3", lines)
    state = replace(STATE, page=LOG, find="loss -3\\.0")
    shown = texts(draw_screen(full_look(), log, state, 80, 24, NOW))
    assert shown[1:3] == ["step 2 loss nan", "WARNING: loss is nan"]
    assert not any(shown[3:-1])
    assert shown[-1].startswith("/ find: loss -3\\.0  ")
    errors = replace(state, errors=True, find="loss")
    assert texts(draw_screen(full_look(), log, errors, 80, 24, NOW))[1:3] == [lines[3], ""]
    typing = replace(state, typed=True)
    assert texts(draw_screen(full_look(), log, typing, 80, 24, NOW))[-1].startswith("find: loss -3")
    none = draw_screen(full_look(), log, replace(state, find="xyz"), 80, 24, NOW)
    assert texts(none)[1] == "no line here passes “xyz”; Escape shows all"


def test_jobs_without_progress_are_named_wherever_the_table_is_scrolled() -> None:
    hung = {**PHASE, "stalled": True, "last_step": NOW - 725, "last_progress": NOW - 725}
    late = {**PHASE, "late": True, "last_step": NOW - 70}
    jobs = [job_of(n, phase=late if n == 5 else hung, state_since=NOW - 725) for n in (5, 30)]
    jobs = [*(job_of(n) for n in range(6, 30)), *jobs]
    look = a_look(*jobs)
    drawn = draw_screen(look, None, ViewState(chosen=9), 80, 24, NOW).lines
    (line,) = [line for line in drawn if text_of(line).startswith("stalled ")]
    assert text_of(line).rstrip() == "stalled  job 30 (tiny) 12m   late  job 5 (tiny) 12m"
    assert meaning_in(line, "job 30") == "bad"
    assert meaning_in(line, "job 5") == "warning"
    head = texts(draw(120, 40, look))[0]
    assert "   jobs: 24 running, 1 late, 1 stalled   " in head, "counted as in the queue"


def test_rows_that_jobs_do_not_need_show_the_machine_and_the_names_of_columns() -> None:
    four = a_look(*FIVE, gpus=eight_gpus()[:4], chosen=chosen(FIVE[0], ["a line"]))
    lines = texts(draw(80, 24, four))
    assert lines[0].startswith("gpu1   4 × Fake H100   jobs: 2 running, 1 waiting, 2 ended   ")
    assert lines[1].split() == ["#", "memory", "GiB", "busy", "temp", "power", "clock", "who"]
    assert [line[:2] for line in lines[2:6]] == [f" {n}" for n in range(4)]
    assert [line.split()[0] for line in lines[10:14]] == ["4", "5", "6", "7"]
    seven = a_look(*FIVE, gpus=eight_gpus()[:7], chosen=chosen(FIVE[0], ["a line"]))
    assert texts(draw(80, 24, seven))[0].startswith("gpu1   7 × Fake H100   jobs: ")
    assert texts(draw(80, 24, seven))[1].startswith(" 0")


def test_a_tall_screen_shows_names_of_columns_and_a_chart() -> None:
    lines = texts(draw(110, 40))
    assert lines[1].startswith(" # memory ")
    assert any("│⣧" in line or "│⡇" in line for line in lines)
    assert lines[-2] == "line 59"


@given(
    st.integers(0, 210),
    st.integers(0, 64),
    st.sampled_from([0, 1, 5, 300]),
    st.sampled_from([0, 1, 8, 16]),
    st.sampled_from(
        [STATE, ViewState(), ViewState(chosen=3, page=HELP), ViewState(only="x", typed=True)]
    ),
)
def test_it_fits_into_any_terminal(
    columns: int, rows: int, jobs: int, gpus: int, state: ViewState
) -> None:
    many = tuple({**FIVE[n % 5], "id": 3 + n} for n in range(jobs))
    look = full_look(many) if many else a_look()
    everything = (*look.snapshot.gpus, *look.snapshot.gpus)
    look = replace(look, snapshot=replace(look.snapshot, gpus=everything[:gpus]))
    drawn = draw(columns, rows, look, state)
    assert len(drawn.lines) <= max(1, rows)
    assert all(width(line) <= columns for line in drawn.lines)
    assert not any("\x1b" in text_of(line) or "\n" in text_of(line) for line in drawn.lines)


MOVES = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What would move the cursor, or turn the text round."""
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=examples(60))
@given(
    st.dictionaries(
        st.sampled_from([*STEP, "mfu", "seconds_left", "skipped_steps", "loss_scale"]), ANYTHING
    ),
    st.text(max_size=20),
    st.sampled_from([(80, 24), (200, 60), (60, 16)]),
)
def test_what_a_job_reports_and_is_called_may_be_anything(
    record: dict[str, object], name: str, size: tuple[int, int]
) -> None:
    job = {**job_of(3), "progress": record, "name": name, "user": name}
    saved = {"step": record.get("step"), "path": name, "verified": None, "not_verified": name}
    job = {**job, "latest_checkpoint": saved, "reason": name}
    for state in ("running", "queued", "failed"):
        look = full_look(({**job, "state": state},))
        for line in draw(*size, look).lines:
            assert width(line) <= size[0]
            assert not MOVES.search(text_of(line))


def test_the_job_under_the_mouse_is_known() -> None:
    for size in ((80, 24), (200, 60)):
        drawn = draw(*size)
        assert list(drawn.jobs.values()) == [3, 4, 5, 6, 7]
        for row, number in drawn.jobs.items():
            assert str(number) in text_of(drawn.lines[row]).split()[:2]


def test_of_many_jobs_those_around_the_chosen_one_are_shown() -> None:
    many = tuple({**FIVE[0], "id": number} for number in range(1, 101))
    drawn = draw(80, 24, full_look(many), ViewState(chosen=50))
    assert 50 in drawn.jobs.values()
    marks = [text_of(drawn.lines[row])[0] for row in drawn.jobs]
    assert (marks[0], marks[-1]) == ("↑", "▸")
    words = "job name 46-50/100 owner state progress left loss saved"
    assert texts(drawn)[10].split() == words.split(), "no column loses its name"
    assert draw(80, 24, full_look(many), drawn.state).state == drawn.state


def test_without_jobs_it_is_said_and_processes_are_listed() -> None:
    text = "\n".join(texts(draw(80, 24, a_look())))
    assert "no job runs or waits" in text
    assert "bob: python train.py" in text
    none = "\n".join(texts(draw(80, 24, full_look(), ViewState(only="zzz"))))
    assert "none of 5 jobs has the text “zzz”; Escape shows all" in none


def test_a_daemon_that_is_away_is_said_and_its_jobs_stay() -> None:
    look = replace(full_look(), trouble="no daemon answers at /run/x", jobs_age_seconds=75.0)
    lines = texts(draw(80, 24, look))
    assert "jobs  no daemon answers at /run/x (jobs as of 1 min ago)" in lines
    assert any("3 tiny" in line for line in lines)
    wide = texts(draw(200, 60, look))
    assert "jobs  no daemon answers at /run/x (jobs as of 1 min ago)" in wide


def test_the_last_line_asks_answers_or_takes_a_filter() -> None:
    asks = replace(STATE, question="Cancel job 3? It saves first.", asked=3)
    assert texts(draw(80, 24, state=asks))[-1] == "Cancel job 3? It saves first.  y yes  n no"
    longer = replace(asks, question="Cancel job 3? " + "It saves. " * 12)
    assert texts(draw(80, 24, state=longer))[-1].endswith("  y yes  n no")
    full = replace(asks, question="x" * 78)
    assert texts(draw(80, 24, state=full))[-2:] == ["x" * 78, "y yes  n no"]
    said = replace(STATE, message=("the daemon said no, and it said it at length " * 4, "bad"))
    assert texts(draw(80, 24, state=said))[-3].startswith("the daemon said no")
    typed = replace(STATE, typed=True, only="ti")
    assert texts(draw(80, 24, state=typed))[-1].startswith("filter: ti")


def test_pages() -> None:
    log = LogLines(3, 0, "log of job 3", ("one", "two"))
    page = draw_screen(full_look(), log, replace(STATE, page=LOG), 80, 24, NOW)
    assert texts(page)[1:3] == ["one", "two"]
    assert texts(page)[-1].startswith("↑↓ scroll")
    assert texts(draw(80, 24, state=replace(STATE, page=HELP)))[1].strip().startswith("↑ ↓")


@pytest.mark.parametrize("size", [(39, 24), (80, 7), (1, 1), (0, 0)])
def test_a_terminal_that_is_too_small_is_told(size: tuple[int, int]) -> None:
    assert len(draw(*size).lines) == 1


def test_before_the_first_reading_there_is_something_to_see() -> None:
    drawn = draw_screen(None, None, ViewState(), 80, 24, NOW)
    assert texts(drawn)[0] == "reading GPUs, host and jobs"
