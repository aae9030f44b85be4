"""When a command's JSON is printed, and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import pytest

from zerotools.cli.main import run
from zerotools.cli.output import render
from zerotools.cli.output.json_answer import ERROR_SCHEMA, is_requested, schema_of
from zerotools.cli.output.report_failure import report_error
from zerotools.core.errors import EXIT_INTERRUPTED, BadFile, BadRequest

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
