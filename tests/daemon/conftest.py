"""Fixtures of the daemon's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon, daemon_in


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on a fresh state directory, not started yet."""
    with daemon_in(tmp_path / "state") as one:
        yield one
