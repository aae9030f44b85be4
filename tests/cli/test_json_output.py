"""Every command that takes --json prints one object behind its schema, and its errors, too."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Done
from tests.cli.json_cases import CASES, LINES, Shell
from tests.daemon.http.api.fakes import FakeService
from zerotools.cli.command_table import COMMANDS
from zerotools.cli.main import build, run
from zerotools.cli.output.render import ERROR_SCHEMA, schema_of
from zerotools.jobs.client.daemon_client import DaemonClient

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "list": (list,),
    "object": (dict,),
    "null": (type(None),),
}
ERROR_KEYS = ["title", "status", "detail", "code", "exit_code", "hint"]
ROW = re.compile(r"^\| `(\w+)` \| ([\w ]+) \|", re.MULTILINE)


@pytest.fixture
def shell(
    tmp_path: Path,
    service: FakeService,
    client: DaemonClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    return Shell(tmp_path, service, client.socket, capsys, monkeypatch)


def documented(name: str) -> dict[str, str]:
    """The keys of the object that a command prints, and their types."""
    assert schema_of(name) == f"zerotools.{name}/1"
    page = REFERENCE / f"{name}-json.md"
    if page.exists():
        return dict(ROW.findall(page.read_text().split("\n## ")[0]))
    whole = (REFERENCE / "json.md").read_text()
    if f"\n| `{name}` | " in whole.split("\n| command | `jobs` |\n")[1].split("\n\n")[0]:
        return {"schema": "string", "jobs": "list"}
    [text] = (each for each in whole.split("\n### ") if f"`{name}`" in each.partition("\n")[0])
    others = re.compile(rf"^\| `\w+` \| [\w ]+ \| `(?!{name}`)\w+` only\b.*\n", re.MULTILINE)
    return {"schema": "string"} | dict(ROW.findall(others.sub("", text.partition("\n## ")[0])))


def objects(name: str, out: str) -> list[dict[str, Any]]:
    """What a command printed, which is one object, or one on each line."""
    if name in LINES:
        return [json.loads(line) for line in out.splitlines()]
    return [json.loads(out)]


def error_of(done: Done) -> dict[str, Any]:
    """The only error of a command that did nothing."""
    tree = json.loads(done.out)
    if tree["schema"] == ERROR_SCHEMA:
        assert [*tree] == ["schema", "errors"]
        assert done.out.count("\n") == 1
    else:
        assert tree["jobs"] == []
    [error] = tree["errors"]
    assert [*error] == ERROR_KEYS
    assert error["exit_code"] == done.status
    assert f"error: {error['detail']}\n" in done.err
    assert error["hint"] is None or f"hint: {error['hint']}\n" in done.err
    found: dict[str, Any] = error
    return found


def test_every_command_has_a_case() -> None:
    assert [*CASES] == [*COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_it_prints_what_the_reference_says(name: str, shell: Shell) -> None:
    keys, met = documented(name), set()
    for number, case in enumerate(CASES[name]):
        shell.place = shell.place / str(number)
        shell.place.mkdir()
        done = case(shell)
        for tree in objects(name, done.out):
            assert next(iter(tree)) == "schema"
            assert tree["schema"] == schema_of(name)
            assert "errors" not in tree, done
            for key, value in tree.items():
                allowed = [each for word in keys[key].split(" or ") for each in TYPES[word]]
                assert type(value) in allowed, (key, value)
            assert isinstance(tree.get("jobs") or [], list)
            met |= set(tree)
    assert met == set(keys)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_there_is_not_is_an_error_on_stdout(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(build(), [name, "--no-such-option", "--json"])
    error = error_of(Done(status, *capsys.readouterr()))
    assert (error["code"], error["exit_code"]) == ("bad_request", 2)
    assert (error["title"], error["status"]) == ("Bad Request", None)


FAILS: dict[str, tuple[str, ...]] = {
    "convert": ("nothing", "out", "--to", "torch"),
    "maps": ("show", "no-such-map"),
    "init": ("--yes", "--model", "nothing"),
    "estimate": ("nothing",),
    "import": ("nothing",),
    "submit": ("nothing",),
    "priority": ("1", "3"),
    "adopt": ("1",),
    "clean": ("--yes",),
    "monitor": ("--peaks",),
    "chaos": ("--minutes", "0"),
    "help": ("no-such-topic",),
}
"""Arguments with which a command fails where there are no files and no daemon. Unless they are
here, each argument that it needs is the name of a file that there is not."""
NEVER = ("top", "doctor")
"""These also work without a daemon."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NEVER])
def test_what_fails_says_so_on_stdout(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = build().get_command(click.Context(build()), name)
    assert command is not None
    needed = [each for each in command.params if isinstance(each, click.Argument) and each.required]
    words = [*FAILS.get(name, ["nothing"] * len(needed))]
    if any(each.name == "socket" for each in command.params):
        words += ["--socket", str(tmp_path / "nobody.sock")]
    if any(each.name == "state_dir" for each in command.params):
        words += ["--state-dir", str(tmp_path)]
    done = Done(run(build(), [name, *words, "--json"]), *capsys.readouterr())
    tree = json.loads(done.out)
    if name == "thin":  # it has the checkpoint that was refused, too
        assert tree.pop("checkpoints")[0]["status"] == "refused"
        done = done._replace(out=json.dumps({**tree, "jobs": []}))
    error = error_of(done)
    asks = error["code"] == "daemon_unreachable"
    assert asks or error["code"] in ("bad_request", "bad_file"), error


def test_the_daemon_refuses_by_its_own_code(shell: Shell) -> None:
    error = error_of(shell.ask("resume", 1))
    assert (error["title"], error["status"], error["code"]) == ("Conflict", 409, "conflict")
    error = error_of(shell.ask("show", 77))
    assert (error["title"], error["status"], error["code"]) == ("Not Found", 404, "not_found")
    assert error["exit_code"] == 2


def test_what_is_refused_of_one_job_is_next_to_the_others(shell: Shell) -> None:
    done = shell.ask("cancel", 1, 2, 77, 6)
    tree = json.loads(done.out)
    assert [*tree] == ["schema", "jobs", "errors"]
    assert [job["id"] for job in tree["jobs"]] == [1, 6]
    assert [each["code"] for each in tree["errors"]] == ["conflict", "not_found"]
    assert done.status == tree["errors"][-1]["exit_code"]
    assert done.err.count("error: ") == 2


def test_a_job_that_was_waited_for_and_its_failure(shell: Shell) -> None:
    tree = json.loads(shell.ask("wait", 2).out)
    assert ([job["id"] for job in tree["jobs"]], tree["errors"][0]["code"]) == ([2], "job_failed")
    done = shell.ask("wait", 1, "--timeout", "1")
    tree = json.loads(done.out)
    assert (done.status, tree["jobs"], tree["errors"][0]["code"]) == (124, [], "timeout")


def test_what_was_done_before_a_refusal_is_there(shell: Shell) -> None:
    missing = shell.place / "nothing"
    tree = json.loads(shell.run("thin", missing, "--socket", shell.place / "nobody.sock").out)
    assert tree["checkpoints"][0]["status"] == "refused"
    assert [each["detail"] for each in tree["errors"]] == [f"{missing} does not exist"]
    tree = json.loads(shell.ask("clean", 1, 2, "--yes").out)
    assert ([job["id"] for job in tree["jobs"]], tree["errors"][0]["status"]) == ([2], 409)


def test_an_interruption_is_an_error_too(shell: Shell) -> None:
    done = shell.until_stopped(signal.SIGINT, "monitor", "--socket", shell.socket)
    *readings, last = map(json.loads, done.out.splitlines())
    assert done.status == 130
    assert {each["schema"] for each in readings} == {"zerotools.monitor/1"}
    assert (last["schema"], last["errors"][0]["code"]) == (ERROR_SCHEMA, "interrupted")
