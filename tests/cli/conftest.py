"""`daemon`: the real API over a service in memory; `zerotools`: the command line, in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.cli.main import build, run
from zerotools.jobs.client.daemon_client import DaemonClient


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path / "state")


@pytest.fixture
def client(service: FakeService, tmp_path: Path) -> Iterator[DaemonClient]:
    path = tmp_path / "run" / "api.sock"
    with serving(service, path):
        yield DaemonClient(path, timeout_seconds=10)


@pytest.fixture
def zerotools(client: DaemonClient, capsys: pytest.CaptureFixture[str]) -> Command:
    """`zerotools("queue", "--all")`, asked of the daemon of the test."""

    def invoke(command: str, *arguments: str) -> Done:
        capsys.readouterr()
        status = run(build(), [command, "--socket", str(client.socket), *arguments])
        return Done(status, *capsys.readouterr())

    return invoke
