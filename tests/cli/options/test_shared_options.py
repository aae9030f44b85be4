"""`zerotools --host`: commands that ask the daemon of another machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done
from tests.daemon.http.api.fakes import FakeService
from tests.io.ssh.double import SshDouble
from zerotools.cli.main import build, run
from zerotools.jobs.client.daemon_client import DaemonClient

JOB = """
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
    job.write_text(JOB)
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
    job.write_text(JOB.replace("/data", path))
    done = there("submit", str(job))
    assert done.status == 2
    assert "must be an absolute path (with --host, it is a path of box)" in done.err


@pytest.mark.parametrize("command", ["inspect", "doctor", "monitor", "backup", "thin"])
def test_what_looks_at_this_machine_is_refused(there: Callable[..., Done], command: str) -> None:
    done = there(command)
    assert done.status == 2
    assert f"run it there: ssh -t HOST zerotools {command}" in done.err


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
