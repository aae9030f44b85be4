"""Fixtures of the daemon's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.daemon.daemons import Daemon, daemon_in
from tests.daemon.made_attempts import FAKE_RANK
from tests.daemon.small_disks import SmallDisk, mounted
from zerotoolsd.supervisor.preloaded import entry


@pytest.fixture(scope="module", autouse=True)
def no_rank_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End the ranks that a test left without a daemon: they would wait until the machine restarts,
    and look at a file 200 times a second."""
    yield
    place = f"{tmp_path_factory.getbasetemp()}/"
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = process.info["cmdline"] or ()
        executed = str(FAKE_RANK) in words and any(word.startswith(place) for word in words)
        forked = str(entry.__file__) in words and (process.info["cwd"] or "").startswith(place)
        if executed or forked:
            with suppress(psutil.NoSuchProcess):
                process.kill()


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
