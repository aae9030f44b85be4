"""Attempts for tests: a run directory with its `attempt.json`, and its supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.started import Started
from tests.daemon.waiting import wait_for
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor import entry
from zerotoolsd.supervisor.attempt_plan import PROGRESS, SUMMARY, Plan
from zerotoolsd.supervisor.durable_files import read_json, write_json
from zerotoolsd.supervisor.procfs import read_process

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


def own_token() -> str:
    """Return the token of the attempts of this test process.

    A search for a token ends what carries it on the whole machine. So processes that run tests
    side by side have different tokens, even if this module was imported before they were forked.
    """
    return _token_of(os.getpid())


@cache
def _token_of(pid: int) -> str:
    return uuid4().hex


def an_attempt_row(number: int = 1, **changes: Any) -> AttemptRow:
    """An attempt of job 1 that is over, as the queue has it."""
    values: dict[str, Any] = {
        "job_id": 1,
        "number": number,
        "token": f"token-{number}",
        "state": "ended",
        "run_dir": f"/state/jobs/1/attempt-{number}",
        "gpu_uuids": (),
        "resumed_from": None,
        "started": 1.0,
        "ended": 2.0,
        "result": {},
    }
    return AttemptRow(**{**values, **changes})


def make_attempt(run_dir: Path, fake: str, **changes: Any) -> Path:
    """A run directory whose ranks do what `fake` says."""
    run_dir.mkdir(parents=True, mode=0o700)
    values: dict[str, Any] = {
        "job_id": 1,
        "attempt": 1,
        "token": own_token(),
        "argv": (sys.executable, "-I", "-S", str(FAKE_RANK), "--run-dir", str(run_dir)),
        "env": {"FAKE": fake, "ZEROTOOLS_RUN_DIR": str(run_dir)},
        "cwd": "/",
        "umask": 0o077,
        "world_size": 2,
        "gpu_uuids": (),
        "grace_seconds": 10.0,
        "straggler_seconds": 10.0,
        "log_limit_bytes": 2**20,
    }
    write_json(run_dir / "attempt.json", Plan(**{**values, **changes}).to_json())
    write_json(run_dir / "spec.json", {"output_dir": str(run_dir.parent / "output")})
    return run_dir


def supervise(run_dir: Path) -> Started:
    """Start the supervisor of `run_dir`."""
    (run_dir / "supervisor.log").touch(mode=0o600)
    with (run_dir / "supervisor.log").open("ab") as log:
        return Started(
            [sys.executable, "-I", "-S", str(entry.__file__), str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def finish(run_dir: Path, process: Started) -> dict[str, Any]:
    """The attempt's `exit.json`, once its supervisor has ended."""
    status = process.wait(timeout=20)
    assert status == 0, (run_dir / "supervisor.log").read_text()
    record = read_json(run_dir / "exit.json")
    assert record is not None
    return record


def progress_of(run_dir: Path) -> list[dict[str, Any]]:
    """The messages of ranks that the supervisor kept so far."""
    path = run_dir / "progress.jsonl"
    kept = path.read_text().splitlines() if path.exists() else []
    return [message for message in map(json.loads, kept) if message["event"] != SUMMARY]


def noted_at_step(step: int, run_dir: Path) -> bool:
    """Whether the supervisor has kept that a rank came to `step`, and what memory ranks take."""
    text = (run_dir / PROGRESS).read_text()
    kept = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    steps = {message.get("step") for message in kept}
    most = max(message.get("peak_host_bytes") or 0 for message in kept) if kept else 0
    return step in steps and most > 2**20


def started(run_dir: Path) -> dict[str, Any]:
    """`run.json`, once it names the ranks."""

    def named() -> dict[str, Any] | None:
        record = read_json(run_dir / "run.json")
        return record if record and "ranks" in record else None

    record = wait_for(named, "run.json to name the ranks")
    assert record is not None
    return record


def wait_for_file(path: Path) -> Path:
    """`path`, once it is there."""
    wait_for(path.exists, str(path))
    return path


def is_alive(pid: int) -> bool:
    """Whether `pid` runs (a zombie does not)."""
    process = read_process(pid)
    return process is not None and process.state not in "ZX"
