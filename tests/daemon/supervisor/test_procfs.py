"""/proc as administrators mount it for several users: what others run is hidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.made_attempts import make_attempt
from zerotoolsd.supervisor import entry
from zerotoolsd.supervisor.durable import read_json
from zerotoolsd.supervisor.procfs import read_process

HIDDEN = "mount -t proc -o hidepid=1 proc /proc && "
MAY_READ = "--inh-caps=+dac_override --ambient-caps=+dac_override"
OTHER = f"setpriv --reuid 65534 --regid 65534 --clear-groups {MAY_READ} "


def in_namespace(command: str) -> subprocess.CompletedProcess[bytes]:
    """Run below a /proc with hidepid=1 as a user to whom it hides what root runs."""
    inside = ("unshare", "-p", "-m", "--fork", "sh", "-c", f"{HIDDEN}{OTHER}{command}")
    return subprocess.run(inside, capture_output=True, check=False, timeout=60)


def test_a_process_that_proc_hides_is_passed_over() -> None:
    def hidden(path: Path) -> bytes:
        raise PermissionError(1, "Operation not permitted", str(path))

    assert read_process(1, hidden) is None
    assert read_process(os.getpid()) is not None


def test_a_job_of_an_ordinary_user_runs_and_is_ended_where_others_are_hidden(
    tmp_path: Path,
) -> None:
    tools = all(map(shutil.which, ("unshare", "setpriv")))
    if not tools or os.geteuid() or in_namespace("sh -c '! cat /proc/1/stat'").returncode:
        pytest.skip("another user, and a /proc of their own, need root with CAP_SYS_ADMIN")
    run = make_attempt(tmp_path / "run", "rank=0:child rank=1:orphan steps=2 exit=0")
    done = in_namespace(f"{sys.executable} -I -S {entry.__file__} {run}")
    assert done.returncode == 0, done.stderr.decode()
    record = read_json(run / "exit.json")
    assert record is not None
    assert (record["outcome"], record["unkillable"]) == ("finished", [])
    assert record["peak_host_bytes"] > 2**20
