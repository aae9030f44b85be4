"""What `doctor` says of the locks of GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.jobs.doctor.gpu_locks import look_at_gpu_locks


def test_what_the_daemon_says_counts() -> None:
    (fine,) = look_at_gpu_locks({"directory": "/run/zerotools/gpus", "trouble": None})
    assert fine.level == "ok"
    (found,) = look_at_gpu_locks({"directory": "/x", "trouble": "/x: No such file or directory"})
    assert found.level == "warning"
    assert "two daemons may give one GPU to two jobs: /x: No such file" in found.found
    assert found.do is not None
    assert "install -d -m 1777 /x" in found.do


def test_without_a_daemon_the_directory_is_looked_at(tmp_path: Path) -> None:
    (found,) = look_at_gpu_locks(None, tmp_path / "gpus")
    assert "No such file or directory" in found.found
    (tmp_path / "gpus").mkdir(mode=0o755)
    (found,) = look_at_gpu_locks(None, tmp_path / "gpus")
    assert found.level == "warning"
    (tmp_path / "gpus").chmod(0o1777)
    if os.geteuid() != 0:
        pytest.skip("the directory must be root's")
    assert [each.level for each in look_at_gpu_locks(None, tmp_path / "gpus")] == ["ok"]
