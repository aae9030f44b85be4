from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Done
from tests.daemon.http.api.fakes import FakeService
from tests.io.ssh.double import SshDouble
from zerotools.cli.main import build, run
from zerotools.cli.options.click_options import GENERAL, JOB, ORDER, GroupedCommand, option
from zerotools.jobs.client.daemon_client import DaemonClient

MOST_IN_ONE_LIST = 11


@click.command("toy", cls=GroupedCommand)
@click.argument("file")
@option("--later", help="Of no group.")
@option("--name", group=JOB, help="Of a group.")
@click.option("--plain", help="Of click itself.")
def toy(**_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize("words", [["--name"], ["f", "--odd"], ["--later", "x"], ["f", "g"]])
def test_every_usage_error_points_to_the_help_of_its_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    group = click.Group("zerotools")
    group.add_command(toy)
    assert run(group, ["toy", *words]) == 2
    assert capsys.readouterr().err.endswith("hint: see zerotools toy --help\n")


def sections(command: click.Command) -> dict[str, list[str]]:
    """Return the options of each list of a help page, by its title."""
    found: dict[str, list[str]] = {}
    for line in command.get_help(click.Context(command, terminal_width=100)).splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line[:-1]
            found[title] = []
        elif line.startswith("  ") and not line.startswith("   ") and found:
            found[title].append(line.split()[0].rstrip(","))
    return found


def test_options_are_listed_by_group_and_those_without_one_come_last() -> None:
    assert sections(toy) == {JOB: ["--name"], GENERAL: ["--later", "--plain", "--help"]}


def test_one_group_alone_is_a_plain_list() -> None:
    command = GroupedCommand("toy", params=[click.Option(["--plain"], help="A flag.")])
    assert sections(command) == {"Options": ["--plain", "--help"]}


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(AssertionError, match="'Others' is not in ORDER"):
        option("--name", group="Others")(lambda: None)


OF_JOBS = ("clean", "edit", "estimate", "import", "init", "logs", "monitor", "submit")
OF_CHECKPOINTS = ("consolidate", "convert", "diff", "reshard", "salvage", "serve", "thin", "verify")


@pytest.mark.parametrize("name", [*OF_JOBS, *OF_CHECKPOINTS])
def test_a_command_with_many_options_has_them_in_groups(name: str) -> None:
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    found = {title: listed for title, listed in sections(command).items() if title in ORDER}
    assert list(found)[-1] == GENERAL
    assert len(found) > 1
    assert max(map(len, found.values())) <= MOST_IN_ONE_LIST
    assert {"--json", "--debug"} <= {*found[GENERAL]}


JOB_FILE = """
engine = "script"
device = "cpu"
ranks = 1
[script]
command = ["train.sh"]
directory = "/data"
"""


@pytest.fixture
def there(
    client: DaemonClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Done]:
    """`there("queue")` asks the daemon of the test as that of a machine called box."""
    SshDouble(tmp_path, monkeypatch)

    def invoke(*arguments: str) -> Done:
        capsys.readouterr()
        status = run(build(), ["--host", f"ssh://box{client.socket}", *arguments])
        return Done(status, *capsys.readouterr())

    return invoke


def test_a_job_goes_there_with_the_environment_of_there(
    there: Callable[..., Done],
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB_FILE)
    monkeypatch.setenv("HF_HOME", "/there/hf")
    done = there("submit", str(job), "--env", "MINE=1")
    assert done.status == 0, done.err
    assert f"read its log   zerotools --host ssh://box{tmp_path}/run/api.sock logs -f 1" in done.out
    [shown] = json.loads(there("show", "1", "--json").out)["jobs"]
    assert shown["spec"]["captured_env"]["HF_HOME"] == "/there/hf"
    assert list(shown["spec"]["env"]) == ["MINE"]


@pytest.mark.parametrize("path", ["data", "~/data"])
def test_its_paths_are_of_there(there: Callable[..., Done], tmp_path: Path, path: str) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB_FILE.replace("/data", path))
    done = there("submit", str(job))
    assert done.status == 2
    assert "must be an absolute path (with --host, the path is on box)" in done.err


@pytest.mark.parametrize("command", ["inspect", "doctor", "monitor", "backup", "thin"])
def test_what_looks_at_this_machine_is_refused(there: Callable[..., Done], command: str) -> None:
    done = there(command)
    assert done.status == 2
    assert f"on the other machine: ssh -t HOST zerotools {command}" in done.err


def test_a_socket_here_and_a_machine_there(there: Callable[..., Done]) -> None:
    done = there("queue", "--socket", "/x")
    assert done.status == 2
    assert "--host and --socket exclude each other" in done.err


def test_a_message_names_the_daemon_there(there: Callable[..., Done], tmp_path: Path) -> None:
    done = there("cancel", "7")
    assert done.status == 2
    assert "job 7 does not exist" in done.err
    (tmp_path / "run" / "api.sock").unlink()
    assert "no zerotoolsd listens on box at" in there("queue").err
