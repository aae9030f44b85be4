"""The daemon of a drill, where it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.chaos.private_daemon import PrivateDaemon


def test_one_that_cannot_start_is_refused_with_what_it_said(tmp_path: Path) -> None:
    daemon = PrivateDaemon(tmp_path, 2)
    (tmp_path / "zerotoolsd.toml").write_text("[limits]\ncpu_ranks = 'none'\n")
    with pytest.raises(DaemonUnreachable) as refused:
        daemon.begin()
    assert "zerotoolsd cannot be started here: error: " in str(refused.value)
    assert "limits.cpu_ranks" in str(refused.value)
    assert not daemon.is_running()
    assert not daemon.answers()
    daemon.end()


def test_an_end_that_nobody_asked_for_is_noted(tmp_path: Path) -> None:
    daemon = PrivateDaemon(tmp_path, 2)
    daemon.keep_up()
    daemon.keep_up()
    assert daemon.unexpected_exits == ["it ended with status None: it said nothing"]
    assert (daemon.starts, daemon.kill(1.0)) == (0, False)
