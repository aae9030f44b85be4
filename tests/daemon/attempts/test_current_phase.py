"""Since when an attempt takes no step, by what its supervisor wrote and by what ranks said."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import running
from tests.daemon.waiting import wait_async
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.current_phase import Clocks, phase_of, time_since_step
from zerotoolsd.config.config_tables import WatchConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.interface.api_types import JobView

NOW = Clocks(monotonic=1061.0, time=2_000_061.0)
RANKS = [
    {"rank": 0, "phase": "step", "at": "the all-reduce of step 812", "since_clock": 1000.5},
    {"rank": 1, "phase": "step", "at": "step 812", "since_clock": 1000.0, "state": "T"},
]
WRITTEN = {
    "last_step_clock": 1000.0,
    "step_seconds": 0.4,
    "deadline_seconds": 600.0,
    "stalled": None,
    "awaited": 1,
    "ranks": RANKS,
}


def write(run_dir: Path, **changes: Any) -> None:
    (run_dir / "heartbeats.json").write_text(json.dumps({**WRITTEN, **changes}))


def test_what_the_supervisor_wrote_is_told_in_seconds_since_1970(tmp_path: Path) -> None:
    write(tmp_path)
    assert time_since_step(tmp_path, None, NOW) == {
        "name": "step",
        "last_step": 2_000_000.0,
        "step_seconds": 0.4,
        "step_is_old": True,
        "late": True,
        "waits_for": {"rank": 1, "at": "step 812", "since": 2_000_000.0, "state": "T"},
        "deadline_seconds": 600.0,
        "stalled": False,
        "stall": None,
    }
    write(tmp_path, stalled="rank 1 has been ...")
    assert time_since_step(tmp_path, None, NOW)["stalled"] is True


def test_a_clock_that_was_set_changes_no_age(tmp_path: Path) -> None:
    write(tmp_path)
    step = {"time": 2_000_000.0, "step_seconds": 0.4}
    tomorrow = Clocks(monotonic=1001.0, time=2_086_400.0)
    found = time_since_step(tmp_path, step, tomorrow)
    assert (found["last_step"], found["late"]) == (2_086_399.0, False)


@pytest.mark.parametrize(
    ("age", "step_seconds", "late"),
    [
        (59.0, 0.4, False),
        (61.0, 0.4, True),
        (81.0, 20.0, True),
        (61.0, None, True),
    ],
)
def test_a_last_step_is_old_after_a_few_steps(
    tmp_path: Path, age: float, step_seconds: float | None, late: bool
) -> None:
    write(tmp_path, last_step_clock=1061.0 - age, step_seconds=step_seconds)
    assert time_since_step(tmp_path, None, NOW)["late"] is late
    ranks = [{**RANKS[0], "phase": "evaluating"}]
    write(tmp_path, last_step_clock=1061.0 - age, step_seconds=step_seconds, ranks=ranks)
    found = time_since_step(tmp_path, None, NOW)
    assert (found["step_is_old"], found["late"]) == (True, False), "it is in no step"


def test_an_attempt_of_an_older_supervisor_has_the_time_of_its_last_step(tmp_path: Path) -> None:
    found = time_since_step(tmp_path, {"time": 2_000_000.0, "step_seconds": 0.5}, NOW)
    assert (found["last_step"], found["step_seconds"], found["late"]) == (2_000_000.0, 0.5, True)
    assert (found["name"], found["waits_for"]) == (None, None)
    assert time_since_step(tmp_path, None, NOW)["late"] is False, "it has taken none"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ranks": 7, "last_step_clock": "x", "step_seconds": NaN, "awaited": []}',
        '{"ranks": [{"rank": true}, 7, {"rank": 1, "since_clock": 1e300, "at": 9, "state": "XX"}],'
        ' "awaited": 1, "last_step_clock": -1.0, "step_seconds": true, "deadline_seconds": 1e400}',
    ],
)
def test_what_a_rank_makes_up_does_no_harm(tmp_path: Path, text: str) -> None:
    (tmp_path / "heartbeats.json").write_text(text)
    found = time_since_step(tmp_path, {"time": "soon", "step_seconds": []}, NOW)
    assert (found["last_step"], found["step_seconds"], found["late"]) == (None, None, False)
    assert found["waits_for"] in (None, {"rank": 1, "at": "", "since": None, "state": None})
    (tmp_path / "heartbeats.json").unlink()
    os.mkfifo(tmp_path / "heartbeats.json")
    assert time_since_step(tmp_path, None, NOW)["name"] is None


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
    """What of it is not `time_since_step`'s."""
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


def test_phases_that_a_rank_makes_up_do_no_harm(tmp_path: Path) -> None:
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
