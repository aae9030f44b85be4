from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.serving import serving
from zerotools.jobs.client.daemon_client import DaemonClient


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path / "state")


@pytest.fixture
def client(service: FakeService, tmp_path: Path) -> Iterator[DaemonClient]:
    with serving(service, tmp_path / "run" / "api.sock"):
        yield DaemonClient(tmp_path / "run" / "api.sock", timeout_seconds=10)
