"""What is read from a run directory that its own ranks can write to."""

import json
import os
from pathlib import Path

import pytest

from zerotoolsd.attempts import last_report
from zerotoolsd.queue.rows import AttemptRow


def test_the_newest_step_is_found_among_other_lines(tmp_path: Path) -> None:
    lines = [b'{"event": "step", "step": 1}', b'{"event": "step", "step": 2}', b"[", b'{"event": 3']
    (tmp_path / "progress.jsonl").write_bytes(b"x" * 40_000 + b"\n" + b"\n".join(lines))
    assert last_report.report_so_far(tmp_path).step == {"event": "step", "step": 2}


def test_what_a_rank_prepares_is_known_until_its_first_step(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text('{"event": "phase", "doing": []}\n')
    assert last_report.report_so_far(tmp_path).doing is None
    with path.open("a") as file:
        file.write('{"event": "phase", "doing": "reading the data"}\n{"event": "summary"}\n')
    assert last_report.report_so_far(tmp_path).doing == "reading the data"
    with path.open("a") as file:
        file.write('{"event": "step", "step": 1}\n')
    assert last_report.report_so_far(tmp_path).doing is None


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    assert last_report.report_so_far(tmp_path) == last_report.LastReport()
    os.mkfifo(tmp_path / "progress.jsonl")
    assert last_report.report_so_far(tmp_path) == last_report.LastReport()


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([{"event": "checkpoint", "step": 4}, {"event": "summary", "checkpoint_step": 3}], 3),
        ([{"event": "summary", "checkpoint_step": 3}, {"event": "checkpoint", "step": 4}], 4),
        ([{"event": "checkpoint", "step": 4}, {"event": "summary", "checkpoint_step": None}], 4),
        ([{"event": "checkpoint", "step": "4"}, {"event": []}], None),
    ],
)
def test_the_newest_line_that_names_a_checkpoint_counts(
    tmp_path: Path, lines: list[dict[str, object]], step: int | None
) -> None:
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert last_report.report_so_far(tmp_path).checkpoint_step == step


def test_what_a_program_reported_itself_is_known_apart_from_what_was_found(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"event": "checkpoint", "step": 4, "path": "/o/4"},
        {"event": "checkpoint", "step": 5, "path": "/o/5", "found": True},
        {"event": "checkpoint", "step": 6, "path": "/o/6"},
        {
            "event": "summary",
            "checkpoint_step": 7,
            "checkpoint_path": "/o",
            "checkpoint_found": True,
        },
    ]
    first, second = (tmp_path / name for name in ("attempt-1", "attempt-2"))
    for directory in (first, second):
        directory.mkdir()
    (first / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = {"checkpoint": {"step": 9, "path": "/o/9"}}
    attempts = [made(first), made(second, state="ended", result=ended)]
    assert last_report.checkpoints_before(attempts) == ["/o/9", "/o"]
    assert last_report.reported_by_program(attempts) == ["/o/9", "/o/6", "/o/4"]


def made(directory: Path, state: str = "running", result: object = None) -> AttemptRow:
    return AttemptRow(
        job_id=1,
        number=1,
        token="t",
        state=state,
        run_dir=str(directory),
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=result,  # type: ignore[arg-type]
    )


COPY = {"event": "uploaded", "step": 4, "path": "s3://b/run/step-00000004", "time": 5.0}
IN_SUMMARY = {"event": "summary", "uploaded": {k: COPY[k] for k in ("step", "path", "time")}}


@pytest.mark.parametrize(
    ("lines", "path", "why"),
    [
        ([], None, None),
        ([COPY], COPY["path"], None),
        ([COPY, {"event": "upload_failed", "why": "no\nrights"}], COPY["path"], "no rights"),
        ([{"event": "upload_failed", "why": "no rights"}, COPY], COPY["path"], None),
        ([{"event": "upload_failed", "why": "no rights"}], None, "no rights"),
        ([IN_SUMMARY, {"event": "upload_failed", "why": 7}], COPY["path"], None),
        ([{"event": "summary", "uploaded": ["x"]}, {**COPY, "path": 7}], None, None),
    ],
)
def test_the_newest_copy_in_a_store_is_known(
    tmp_path: Path, lines: list[dict[str, object]], path: str | None, why: str | None
) -> None:
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = last_report.report_so_far(tmp_path).uploaded or {}
    assert (found.get("path"), found.get("why")) == (path, why)


SAVED = {"event": "checkpoint", "step": 4, "path": "/o/4", "time": 5.0, "verified": "at_save"}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([], ("at_save", 5.0, None)),
        ([{"event": "resumed", "path": "/o/4", "time": 9.0, "verified": "digests"}], "digests"),
        ([{"event": "skipped_checkpoint", "path": "/o/4", "why": "a bit"}], (None, None, "a bit")),
        ([{"event": "resumed", "path": "/o/4", "verified": ["no", "word"]}], "at_save"),
        (
            [{"event": "checkpoint", "path": "/o/4", "not_verified": "x" * 2000}],
            (None, None, "x" * 1000),
        ),
        ([{"event": "resumed", "path": "/o/other", "verified": "digests"}], "at_save"),
    ],
)
def test_the_newest_word_on_a_checkpoint_counts(
    tmp_path: Path, later: list[dict[str, object]], said: object
) -> None:
    lines = [json.dumps(line) + "\n" for line in (SAVED, *later)]
    (tmp_path / "progress.jsonl").write_text("".join(lines))
    found = last_report.report_so_far(tmp_path).verified["/o/4"]
    assert said in (found.how, (found.how, found.time, found.why))


def test_a_summary_repeats_what_was_said(tmp_path: Path) -> None:
    line = {"event": "summary", "checkpoint_path": "/o/4", "checkpoint_verified": "at_save"}
    (tmp_path / "progress.jsonl").write_text(json.dumps(line) + "\n")
    assert last_report.report_so_far(tmp_path).verified["/o/4"].how == "at_save"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nthe last\n\n", "the last"),
        ("", None),
        ("a\n\n[zerotools: 7 bytes were dropped here]\n", "a"),
        (
            "step 15\n\n[zerotools: no step for 2 min. The limit is 60 s: the job continues; "
            "the stacks follow]\n[zerotools: state in the kernel]\npid 7 sleeps\n",
            "step 15",
        ),
    ],
)
def test_the_last_line_is_of_the_program(text: str, line: str | None, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(text)
    assert last_report.last_line(log) == line
