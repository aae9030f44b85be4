from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import pytest

from zerotools.cli.main import run
from zerotools.cli.output import render
from zerotools.cli.output.render import ERROR_SCHEMA, is_requested, schema_of
from zerotools.cli.output.report_failure import report_error
from zerotools.core.errors import EXIT_INTERRUPTED, BadFile, BadRequest


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (61.2 * 2**30, "61.2 GiB"),
        (3 * 2**60, "3072.0 PiB"),
        (None, "-"),
    ],
)
def test_size(count: float | None, shown: str) -> None:
    assert render.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (4 * 86400 + 3 * 3600, "4 d 03 h"),
        (-3, "0 s"),
        (None, "-"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert render.duration(seconds) == shown


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("数据", 4), ("e\u0301", 1), ("ก็", 1), ("नमस्ते", 4), ("a\u20dd", 1), ("\u200d", 0)],
)
def test_width_is_that_of_a_terminal(text: str, columns: int) -> None:
    assert render.width(text) == columns


def test_what_breaks_lines_or_shows_nothing_is_written_out() -> None:
    assert render.clean("a\u2028b\u200bc\ufeffd\u061ce") == "a\\u2028b\\u200bc\\ufeffd\\u061ce"
    assert render.clean("👩\u200d👧 שלום") == "👩\u200d👧 שלום"


def test_clean_shows_what_would_move_the_cursor() -> None:
    assert render.clean("a\x1b[2Jb\nc\u202ed\ud800") == "a\\x1b[2Jb\\nc\\u202ed\\ud800"


def test_table_is_as_wide_as_its_content() -> None:
    lines = render.table(["id", "name"], [["7", "a\tb"], ["12", "宽"]], right=["id"])
    assert lines == ["id  name", " 7  a\\tb", "12  宽"]


def test_table_shortens_only_the_last_column() -> None:
    lines = render.table(["id", "why"], [["1", "waits for a GPU that is held"]], columns=20)
    assert lines == ["id  why", "1   waits for a GPU…"]


def test_fields_are_aligned_and_empty_ones_left_out() -> None:
    assert render.fields([("state", "queued"), ("why", ""), ("id", "3")]) == [
        "state  queued",
        "id     3",
    ]


def test_long_fields_continue_below_themselves_between_words() -> None:
    pairs = [("why", "needs 4 GPUs: 1 of 4 is free, and job 2 has the others"), ("id", "3")]
    assert render.fields(pairs, indent=2, columns=40) == [
        "  why  needs 4 GPUs: 1 of 4 is free, and",
        "       job 2 has the others",
        "  id   3",
    ]
    assert render.fields(pairs, indent=2, columns=30) == render.fields(pairs, indent=2)


def test_a_narrow_terminal_gets_a_small_indent() -> None:
    pairs = [("a long name", "words that continue on a second line")]
    assert render.fields(pairs, columns=40) == [
        "a long name  words that continue on a",
        "    second line",
    ]


def test_a_path_is_not_cut() -> None:
    path = f"/data/{'step' * 12}/x-y"
    lines = ["saved", f"       {path}", "       (bf16)"]
    assert render.folded(f"saved  {path} (bf16)", 45, 7) == lines
    assert render.folded("saved  here", None, 7) == ["saved  here"]
    fits = path[:40]
    lines = ["saved step 9 in", f"    {fits}", "    (bf16)"]
    assert render.folded(f"saved step 9 in {fits} (bf16)", 45, 7) == lines


def test_a_path_in_a_remark_is_not_cut() -> None:
    path = "/data/of-a-run/" + "step-" * 6
    rows = [("1", f"cannot read {path}")]
    assert render.table_and_remarks(("id", "why"), rows, columns=40) == [
        "id",
        "1",
        "    cannot read",
        f"    {path}",
    ]


def test_consecutive_numbers_are_joined() -> None:
    assert render.spans([0, 1, 2, 3, 7, 9, 10]) == "0-3, 7, 9-10"
    assert (render.spans([4]), render.spans([])) == ("4", "-")


Answered = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def answered(capsys: pytest.CaptureFixture[str]) -> Answered:
    """`answered(body)` runs `body` as `zerotools queue --json`: its status, what it printed on
    stdout, and stderr."""

    def invoke(body: Callable[[], object]) -> tuple[int, list[dict[str, Any]], str]:
        group = click.Group("zerotools")
        flag = click.Option(["--json"], is_flag=True, expose_value=False)
        group.add_command(click.Command("queue", callback=body, params=[flag]))
        status = run(group, ["queue", "--json"])
        out, err = capsys.readouterr()
        decoder, found = json.JSONDecoder(), []
        while out := out.lstrip():
            tree, end = decoder.raw_decode(out)
            found.append(tree)
            out = out[end:]
        return status, found, err

    return invoke


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_the_schema_comes_first_and_the_last_object_counts(answered: Answered) -> None:
    def body() -> None:
        render.print_json({"jobs": []})
        render.print_json({"jobs": [1]})

    status, [tree], err = answered(body)
    assert (status, err) == (0, "")
    assert list(tree.items()) == [("schema", "zerotools.queue/1"), ("jobs", [1])]


def test_what_was_done_is_printed_with_the_errors(answered: Answered) -> None:
    def body() -> None:
        report_error(BadRequest("first"))
        render.print_json({"jobs": [1]})
        raise BadFile("second; remove it")

    status, [tree], err = answered(body)
    assert [*tree] == ["schema", "jobs", "errors"]
    assert [each["detail"] for each in tree["errors"]] == ["first", "second"]
    assert status == tree["errors"][1]["exit_code"] == 3
    assert err == "error: first\nerror: second\nhint: remove it\n"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (BadRequest("no"), "bad_request", 2),
        (ZeroDivisionError(), "internal", 70),
        (OSError(28, "No space left on device"), "system", 71),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_an_error_alone_is_an_object_of_its_own(
    answered: Answered, error: BaseException, code: str, status: int
) -> None:
    found, [tree], _ = answered(raising(error))
    assert (found, [*tree], tree["schema"]) == (status, ["schema", "errors"], ERROR_SCHEMA)
    [said] = tree["errors"]
    assert (said["code"], said["exit_code"]) == (code, status)


def test_what_was_done_before_an_interruption_is_printed(answered: Answered) -> None:
    def body() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            render.print_json({"jobs": [1]})

    status, [tree], _ = answered(body)
    assert (status, tree["jobs"], tree["errors"][0]["code"]) == (130, [1], "interrupted")


def test_a_command_that_ends_as_interrupted_says_so(answered: Answered) -> None:
    status, [tree], err = answered(lambda: EXIT_INTERRUPTED)
    assert (status, tree["errors"][0]["code"], err) == (130, "interrupted", "")


def test_lines_are_printed_at_once_and_an_error_is_the_last(answered: Answered) -> None:
    def body() -> None:
        render.print_json_line({"line": "a"})
        render.print_json_line({"line": "b"})
        raise BadRequest("no")

    _, [first, second, last], _ = answered(body)
    assert first == {"schema": "zerotools.queue/1", "line": "a"}
    assert (second["line"], last["schema"]) == ("b", ERROR_SCHEMA)


def test_an_object_of_another_schema_is_a_defect(answered: Answered) -> None:
    status, [tree], _ = answered(lambda: render.print_json({"schema": "zerotools.other/1"}))
    assert (status, tree["errors"][0]["code"]) == (70, "internal")


def test_what_json_cannot_hold_is_a_defect(answered: Answered) -> None:
    status, [tree], _ = answered(lambda: render.print_json({"jobs": {1, 2}}))
    assert (status, tree["schema"], tree["errors"][0]["code"]) == (70, ERROR_SCHEMA, "internal")


def test_without_json_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    group = click.Group("zerotools")
    group.add_command(click.Command("queue", callback=raising(BadRequest("no"))))
    assert run(group, ["queue"]) == 2
    assert capsys.readouterr().out == ""
    assert run(group, ["--json"]) == 2  # an option of the group itself
    assert json.loads(capsys.readouterr().out)["schema"] == ERROR_SCHEMA


def test_words_behind_two_dashes_are_no_options() -> None:
    assert is_requested(["show", "--json", "--", "x"])
    assert not is_requested(["submit", "--convert", "--", "verify", "x", "--json"])
    assert schema_of("import") == "zerotools.import/1"
