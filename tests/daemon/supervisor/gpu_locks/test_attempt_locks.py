"""What a supervisor holds, and that an attempt does not begin without it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.lock_keepers import NOBODY, kept_locked, lock_directory
from tests.daemon.made_attempts import finish, make_attempt, started, supervise
from zerotoolsd.supervisor.gpu_locks.attempt_locks import take_locks
from zerotoolsd.supervisor.gpu_locks.lock_directory import LockDirectory, Taken
from zerotoolsd.supervisor.procfs import read_process


def told(gpus: Path, *uuids: str, held: tuple[str, ...] = (), ticks: int = 0) -> dict[str, Any]:
    own = read_process(os.getpid())
    assert own is not None
    daemon = {"pid": own.pid, "start_ticks": own.start_ticks + ticks}
    return {"directory": str(gpus), "gpus": uuids, "held": held, "daemon": daemon}


def hold(gpus: Path, uuid: str) -> int:
    directory = LockDirectory(gpus)
    try:
        directory.wait_for_gate(5.0)
        return directory.take(uuid)
    finally:
        directory.close()


def test_it_joins_a_daemon_that_lives_and_nobody_else(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    daemon = hold(gpus, "GPU-1")
    locks = take_locks(told(gpus, "GPU-0", "GPU-1", held=("GPU-1",)))
    assert (locks.refusal, len(locks.descriptors)) == (None, 2)
    locks.close()
    for wrong in (told(gpus, "GPU-1"), told(gpus, "GPU-1", held=("GPU-1",), ticks=1)):
        refused = take_locks(wrong)
        assert refused.descriptors == ()
        assert refused.refusal is not None
        assert refused.refusal.startswith("GPU-1 is in use by ")
    os.close(daemon)


_AS_ANOTHER = """
import json, os, sys
from zerotoolsd.supervisor.gpu_locks.attempt_locks import take_locks
os.chdir(sys.argv[2])
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)  # group 0 is shown all
os.setresuid(*[int(sys.argv[1])] * 3)
assert not os.path.exists(f"/proc/{os.getppid()}/stat")
print(take_locks(json.loads(sys.argv[3])).refusal)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /proc that hides its processes")
def test_a_users_supervisor_joins_a_daemon_of_root_that_proc_hides(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    daemon = hold(gpus, "GPU-1")
    # In its own directory: those above are of the user of the test alone.
    here = {**told(gpus, "GPU-1", held=("GPU-1",)), "directory": "."}
    mount = 'mount -t proc -o hidepid=2 proc /proc || exit 3; exec "$@"'
    python = (sys.executable, "-c", _AS_ANOTHER, str(NOBODY), str(gpus), json.dumps(here))
    done = run(
        ("unshare", "--mount", "sh", "-c", mount, "sh", *python),
        timeout=60,
        capture_output=True,
        text=True,
    )
    if done.returncode == 3 or "unshare failed" in done.stderr:
        pytest.skip(f"no /proc of its own: {done.stderr}")
    assert (done.stdout, done.stderr) == ("None\n", "")
    os.close(daemon)


def test_all_or_none_are_held(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    with kept_locked(gpus / "GPU-1"):
        assert take_locks(told(gpus, "GPU-0", "GPU-1")).refusal
        os.close(hold(gpus, "GPU-0"))
    assert take_locks({}).refusal is None
    gone = take_locks(told(tmp_path / "gone", "GPU-0"))
    assert gone.refusal is not None
    assert "the locks of the GPUs are gone" in gone.refusal


def test_the_attempt_holds_its_gpu_until_the_last_of_its_processes_ends(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    run = make_attempt(tmp_path / "run", "release exit=0", gpu_locks=told(gpus, "GPU-0"))
    process = supervise(run)
    started(run)
    with pytest.raises(Taken, match=f"^is in use by pid {process.pid} of uid {os.geteuid()}, "):
        hold(gpus, "GPU-0")
    (run / "release").touch(0o600)
    assert finish(run, process)["outcome"] == "finished"
    os.close(hold(gpus, "GPU-0"))


def test_an_attempt_whose_gpu_went_to_another_ends_before_it_began(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    run = make_attempt(tmp_path / "run", "exit=0", gpu_locks=told(gpus, "GPU-0"))
    with kept_locked(gpus / "GPU-0") as pid:
        record = finish(run, supervise(run))
    assert record["outcome"] == "not_ready"
    assert f"GPU-0 is in use by pid {pid} of uid {NOBODY}" in record["cause"]
    assert not list(run.glob("rank-*"))
