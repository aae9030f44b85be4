"""Fixtures of the daemon's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon, daemon_in
from tests.daemon.small_disks import SmallDisk, mounted


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on a fresh state directory, not started yet."""
    with daemon_in(tmp_path / "state") as one:
        yield one


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 2 MiB and 200 inodes."""
    with mounted(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this process may not mount a tmpfs")
        yield disk
