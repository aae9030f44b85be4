"""What a supervisor holds, and that an attempt does not begin without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

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
        assert refused.refusal.startswith("GPU-1 is held by ")
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
    with pytest.raises(Taken, match=f"^is held by pid {process.pid} of uid {os.geteuid()}, "):
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
    assert f"GPU-0 is held by pid {pid} of uid {NOBODY}" in record["cause"]
    assert not list(run.glob("rank-*"))
