"""Whether a job that runs still moves, by what its ranks write and report."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from tests.daemon.waiting import wait_async
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.progress_report.phases import phase_of
from zerotoolsd.config.config_tables import WatchConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.interface.api_types import JobView

KEYS = ("doing", "since", "last_progress", "quiet", "last_line")
LOADS = {"event": "phase", "doing": "loading the weights", "time": 1000.0}


def attempt(run_dir: Path, *, log: bytes = b"", at: float = 1000.0) -> Path:
    """An attempt of two ranks that loads since 1000 s, and wrote last at `at`."""
    (run_dir / "progress.jsonl").write_text(json.dumps(LOADS) + "\n")
    (run_dir / "rank-0.log").write_bytes(log)
    (run_dir / "rank-1.log").write_bytes(b"of another rank\n")
    for name, when in (("progress.jsonl", 1000.0), ("rank-0.log", at), ("rank-1.log", 900.0)):
        os.utime(run_dir / name, (when, when))
    return run_dir


def phase(run_dir: Path, now: float, quiet: float = 300.0) -> dict[str, Any]:
    """What of it is not `standstill`'s."""
    report = last_report.report_so_far(run_dir)
    found = phase_of(run_dir, report, ranks=3, quiet_seconds=quiet, now=now)
    return {name: found[name] for name in KEYS}


def test_a_phase_without_progress_is_quiet_after_the_stated_time(tmp_path: Path) -> None:
    attempt(tmp_path, log=b"first\nreading shard 3\n\n", at=1420.0)
    assert phase(tmp_path, 1719.0)["quiet"] is False
    assert phase(tmp_path, 1720.0) == {
        "doing": "loading the weights",
        "since": 1000.0,
        "last_progress": 1420.0,
        "quiet": True,
        "last_line": "reading shard 3",
    }
    assert phase(tmp_path, 99999.0, quiet=0)["quiet"] is False, "0: never"


def test_a_report_is_progress_too(tmp_path: Path) -> None:
    attempt(tmp_path, log=b"a line\n", at=1000.0)
    os.utime(tmp_path / "progress.jsonl", (1500.0, 1500.0))
    assert phase(tmp_path, 1700.0)["quiet"] is False


def test_what_else_lies_there_is_not_looked_at(tmp_path: Path) -> None:
    attempt(tmp_path, log=b"first\n", at=1420.0)
    for name in ("rank-3.log", "rank-x.log"):  # of three ranks
        (tmp_path / name).write_text("made up\n")
    assert phase(tmp_path, 1500.0)["last_line"] == "first"


def test_a_log_says_nothing_to_a_terminal(tmp_path: Path) -> None:
    attempt(tmp_path, log="\x1b[2J\x9bm\u202e ok\n".encode(), at=1420.0)
    assert phase(tmp_path, 1500.0)["last_line"] == r"\x1b[2J\x9bm\u202e ok"


def test_a_bar_that_redraws_its_line_has_a_last_one(tmp_path: Path) -> None:
    attempt(tmp_path, log=b"loading  10%\rloading  90%\r", at=1001.0)
    assert phase(tmp_path, 1001.0)["last_line"] == "loading  90%"


def test_what_a_rank_makes_up_does_no_harm(tmp_path: Path) -> None:
    assert phase(tmp_path, 5.0) == {
        "doing": None,
        "since": None,
        "last_progress": None,
        "quiet": False,
        "last_line": None,
    }
    for number, time in enumerate(("soon", 10**400, -1.0, 1e300, None, [1])):
        (tmp_path / "progress.jsonl").write_text(json.dumps({**LOADS, "time": time}) + "\n")
        assert phase(tmp_path, 5.0)["since"] is None, number
    os.mkfifo(tmp_path / "rank-0.log")
    (tmp_path / "rank-1.log").write_bytes(b"\xff" * 9000)
    os.utime(tmp_path / "rank-1.log", (9e9, 9e9))
    found = phase(tmp_path, 5.0)
    assert found["last_progress"] == 5.0, "the future is now"
    assert len(found["last_line"]) == 500


def test_a_job_that_hangs_is_shown_as_one_without_progress(tmp_path: Path) -> None:
    async def told_of() -> None:
        config = Config(watch=WatchConfig(no_progress_seconds=0.2))
        async with running(tmp_path / "state", config=config) as it:
            job, _ = await it.service.submit(
                make_job("flood=0 release"), uid=os.geteuid(), idempotency_key=None
            )

            async def quiet() -> JobView | None:
                view = await it.service.job(job.id)
                known = view.phase or {}
                return view if known.get("quiet") and known["last_line"] else None

            view = await wait_async(quiet, "the job to be quiet")
            assert view is not None
            assert view.phase is not None
            assert view.phase["last_line"] == "the end"
            it.release(job.id)
            assert (await it.reach(job.id, "succeeded")).phase is None

    asyncio.run(told_of())
