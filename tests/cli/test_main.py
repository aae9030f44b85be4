"""The frame around the commands: laziness, errors, exit codes."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from harness.started import Started
from zerotools import __version__
from zerotools.cli import command_table
from zerotools.cli.command_table import COMMANDS
from zerotools.cli.main import LazyGroup, build, main, run
from zerotools.core import errors


def group_raising(error: BaseException) -> click.Group:
    def fail() -> None:
        raise error

    return group_of(fail)


def group_of(body: Callable[[], object]) -> click.Group:
    group = click.Group("zerotools")
    group.add_command(click.Command("verb", callback=body))
    return group


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (errors.BadRequest("no such path: x"), 2, "error: no such path: x\n"),
        (errors.BadFile("x is damaged"), 3, "error: x is damaged\n"),
        (errors.Unsupported("stage 1"), 4, "error: stage 1\n"),
        (errors.DaemonUnreachable("nobody there"), 5, "error: nobody there\n"),
        (errors.DaemonRefused("no", status=409, code="conflict"), 5, "error: no\n"),
        (errors.JobFailed("job 3 failed"), 6, "error: job 3 failed\n"),
        (
            click.UsageError("Missing argument."),
            2,
            "error: missing argument\nhint: see zerotools verb --help\n",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/out"), 71, "error: /out: No space"),
        (errors.BadFile("bad\x1b[2J"), 3, "error: bad\\x1b[2J\n"),
        (RuntimeError("odd"), 70, "error: this is a defect in zerotools, please report it"),
    ],
)
def test_an_error_is_one_sentence_and_a_status(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(group_raising(error), ["verb"]) == status
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert shown.err.count("error: ") == 1
    assert all(line.startswith(("error: ", "hint: ")) for line in shown.err.splitlines())
    assert shown.out == ""


def test_a_file_without_rights_is_a_bad_file_and_what_cannot_be_made_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.touch()

    def refused(path: Path) -> int:
        error = PermissionError(errno.EACCES, "Permission denied", str(path))
        return run(group_raising(error), ["verb"])

    assert refused(file) == 71  # it can be read: something was to be written
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    assert refused(file) == 3
    assert f"error: {file} cannot be read: Permission denied\n" in capsys.readouterr().err
    assert refused(tmp_path) == 71


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["--debug", "no-such-verb"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_130_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(group_raising(KeyboardInterrupt()), ["verb"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_the_status_of_a_command_is_its_return_value() -> None:
    assert run(group_of(lambda: 1), ["verb"]) == 1
    assert run(group_of(lambda: None), ["verb"]) == 0


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["x" * 9]) == 2
    assert capsys.readouterr().err == (
        "error: unknown command 'xxxxxxxxx'\nhint: see zerotools --help\n"
    )


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("ps", "queue"),
        ("list", "queue"),
        ("kill", "cancel"),
        ("merge", "consolidate"),
        ("zero_to_fp32", "consolidate"),
        ("consolidat", "consolidate"),
        ("nvidia-smi", "monitor"),
        ("paus", "hold"),
        ("unpaus", "release"),
        ("resum", "retry"),
    ],
)
def test_what_other_tools_call_a_command_is_answered_with_ours(
    word: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build(), [word]) == 2
    said = f"error: unknown command {word!r}\nhint: did you mean {ours}?\n"
    assert capsys.readouterr().err == said


def test_every_synonym_is_of_a_command() -> None:
    assert set(command_table.SYNONYMS.values()) <= set(COMMANDS)
    assert not set(command_table.SYNONYMS) & set(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["--version"]) == 0
    assert capsys.readouterr().out == f"zerotools {__version__}\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = (
        "import sys, click; from zerotools.cli.main import run\n"
        "g = click.Group('zerotools')\n"
        "g.add_command(click.Command('verb', callback=lambda: print('x' * 1_000_000)))\n"
        "sys.exit(run(g, ['verb']))"
    )
    with Started(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141


def test_output_that_cannot_be_written_is_a_sentence() -> None:
    command = [sys.executable, "-m", "zerotools", "maps", "list", "--json"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 71
    assert done.stderr.startswith(b"error: No space left on device\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_errors_that_cannot_be_written_leave_status_and_json(where: str) -> None:
    line = f'"$1" -m zerotools inspect nothing --json {where}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["errors"][0]["detail"] == "nothing does not exist"


def test_module_entry_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerotools", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"zerotools {__version__}\n"


def test_closed_output_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `zerotools ... >&-` gives it: Python has no stdout then."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    sys.stdout.close()
    assert left.value.code == 0


def test_the_last_collection_has_nothing_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert gc.get_objects(generation=2) == []


def test_averaging_is_refused_with_the_tool_that_does_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(build(), ["average", "a", "b"]) == 2
    assert "does not average models" in capsys.readouterr().err


LOAD = """
import os, sys, click
from zerotools.cli.main import build
group = build()
group.get_command(click.Context(group), "verify")
threads = len(os.listdir("/proc/self/task"))
print("numpy" in sys.modules, threads, "OPENBLAS_NUM_THREADS" in os.environ)
"""


def test_numpy_is_imported_without_threads_that_spin() -> None:
    """Programs that the command starts do not inherit the setting."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=plain, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "1", "False"]


@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_number_of_threads_that_the_user_set_stays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    group = build()
    assert isinstance(group, LazyGroup)
    before = dict(os.environ)
    assert group.get_command(click.Context(group), "verify") is not None
    assert dict(os.environ) == before
