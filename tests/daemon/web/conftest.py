from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.api.fakes import FakeService
from tests.daemon.web.pages import Served, serving_page


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path / "state")


@pytest.fixture
def page(service: FakeService, tmp_path: Path) -> Iterator[Served]:
    with serving_page(service, tmp_path / "page") as served:
        yield served
