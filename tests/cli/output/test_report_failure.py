"""What an error becomes: a sentence, fields and an exit status."""

from __future__ import annotations

import errno
import os
from contextlib import chdir
from pathlib import Path

import click
import pytest

from zerotools.cli.output.report_failure import INTERRUPTED, failure_of
from zerotools.core import errors

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "json.md"
FIELDS = ["title", "status", "detail", "code", "exit_code", "hint"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.BadRequest("no such path: x"), ("Bad Request", None, "bad_request", 2)),
        (errors.BadFile("x is damaged"), ("Bad File", None, "bad_file", 3)),
        (errors.Incomplete("x is damaged"), ("Bad File", None, "bad_file", 3)),
        (errors.Unsupported("stage 1"), ("Unsupported", None, "unsupported", 4)),
        (errors.DaemonUnreachable("nobody"), ("Daemon Unreachable", None, "daemon_unreachable", 5)),
        (errors.AnswerLost("nobody"), ("Answer Lost", None, "answer_lost", 5)),
        (errors.DaemonRefused("no", status=409, code="conflict"), ("Conflict", 409, "conflict", 5)),
        (errors.DaemonRefused("no", status=599, code="odd"), ("Odd", 599, "odd", 5)),
        (
            errors.BadRequest("no job 9", status=404, code="not_found"),
            ("Not Found", 404, "not_found", 2),
        ),
        (errors.HostUnreachable("n1"), ("Host Unreachable", None, "host_unreachable", 5)),
        (errors.SlurmUnreachable("no"), ("Slurm Unreachable", None, "slurm_unreachable", 5)),
        (errors.JobFailed("job 3 failed"), ("Job Failed", None, "job_failed", 6)),
        (errors.TimedOut("too late"), ("Timeout", None, "timeout", 124)),
        (click.UsageError("Missing argument."), ("Bad Request", None, "bad_request", 2)),
        (click.FileError("x", "is a directory"), ("Failed", None, "failed", 1)),
        (click.Abort(), ("Interrupted", None, "interrupted", 130)),
        (OSError(errno.ENOSPC, "No space left", "/out"), ("System", None, "system", 71)),
        (MemoryError(), ("Out Of Memory", None, "out_of_memory", 71)),
        (RuntimeError("odd"), ("Internal", None, "internal", 70)),
    ],
)
def test_every_error_has_a_code(error: Exception, said: tuple[str, int | None, str, int]) -> None:
    tree = failure_of(error).to_json()
    assert [*tree] == FIELDS
    assert (tree["title"], tree["status"], tree["code"], tree["exit_code"]) == said
    if tree["status"] is None:
        assert f"\n| `{tree['code']}` | " in PAGE.read_text()


def test_the_advice_is_apart_from_what_is_wrong() -> None:
    tree = failure_of(errors.BadRequest("train.stepps: unknown key; did you mean train.steps?"))
    assert tree.to_json()["detail"] == "train.stepps: unknown key"
    assert tree.to_json()["hint"] == "did you mean train.steps?"
    assert INTERRUPTED.to_json()["hint"] is None


def test_a_current_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with chdir(tmp_path):
        os.chdir("gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(FileNotFoundError) as caught:
            Path("job.toml").absolute()
        failure = failure_of(caught.value)
    assert failure.to_json()["detail"] == "the current directory does not exist any more"
    assert failure.exit_code == 71
    assert failure_of(caught.value).message == "No such file or directory"


def test_a_path_that_cannot_be_looked_at_is_refused_without_another_error() -> None:
    """Path.is_file() raises an error for such a name, as in a directory that may not be entered."""
    name = "x" * 300
    with pytest.raises(OSError, match="too long"):
        Path(name).is_file()
    failure = failure_of(PermissionError(errno.EACCES, "Permission denied", name))
    assert (failure.message, failure.exit_code) == (f"{name}: Permission denied", 71)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (click.INT, "'x' is not a whole number"),
        (click.IntRange(1, 9), "'x' is not a whole number"),
        (click.FLOAT, "'x' is not a number"),
        (click.FloatRange(0.1), "'x' is not a number"),
    ],
)
def test_a_number_that_is_none_is_refused_in_plain_words(kind: click.ParamType, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        kind.convert("x", None, None)
    assert failure_of(caught.value).to_json()["detail"] == f"invalid value: {said}"


def test_no_two_kinds_of_errors_share_a_code() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    codes = [kind.code for kind in kinds if "code" in vars(kind)]
    assert len(codes) == len(set(codes)) >= 12


def test_choices_of_what_is_missing_are_in_the_sentence() -> None:
    choices = click.Choice(["list", "show"])
    error = click.MissingParameter(param=click.Argument(["action"], type=choices, metavar="ACTION"))
    assert failure_of(error).message == (
        "missing argument 'ACTION'; choose from list, show; see zerotools --help"
    )
