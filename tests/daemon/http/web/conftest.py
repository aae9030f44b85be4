from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.browser import started_browser
from harness.ports import free_port
from tests.daemon.daemons import CONFIG, Daemon, daemon_in
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import Served, serving_page


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path / "state")


@pytest.fixture
def page(service: FakeService, tmp_path: Path) -> Iterator[Served]:
    with serving_page(service, tmp_path / "page") as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    with started_browser() as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose ranks pretend. Its page is where no other test's is: one that begins while
    this one is stopped would take the port, and answer its page."""
    with daemon_in(tmp_path / "state", f"{CONFIG}\n[web]\nport = {free_port()}\n") as found:
        yield found.start()
