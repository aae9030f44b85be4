"""A real daemon on a machine whose calendar is set while jobs run."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.daemons import CONFIG, Daemon, daemon_in, make_job
from tests.daemon.made_attempts import wait_for_file

SOURCE = Path(__file__).parents[2] / "harness/calendar_double.c"
DAY = 86_400


@pytest.fixture
def set_calendar(tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """Sets the calendar ahead by seconds; what a process needs in its environment to believe it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library, state = tmp_path / "calendar.so", tmp_path / "ahead"
    command = [compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True, capture_output=True)

    def set_by(seconds: int) -> dict[str, str]:
        with state.open("r+b" if state.exists() else "wb") as file:  # it is mapped
            file.write(struct.pack("=q", seconds))
        return {"LD_PRELOAD": str(library), "CALENDAR_DOUBLE": str(state)}

    return set_by


def a_round_of(daemon: Daemon) -> None:
    job = daemon.client.submit(make_job("exit=0", ranks=1))
    assert daemon.wait_for_end(job["id"])["state"] == "succeeded"


def test_jobs_neither_end_nor_start_by_it_and_limits_hold(
    tmp_path: Path, set_calendar: Callable[[int], dict[str, str]]
) -> None:
    config = CONFIG.replace("first_seconds = 0.01", "first_seconds = 200")
    with daemon_in(tmp_path / "state", config) as daemon:
        daemon.start(**set_calendar(0))
        before = daemon.client.health()
        runs = daemon.client.submit(make_job("release exit=0", ranks=1, time_limit="1h"))["id"]
        waits = daemon.client.submit(make_job("signal=9", ranks=1))["id"]
        daemon.wait_for_state(runs, "running")
        daemon.wait_for_state(waits, "waiting_retry")
        created = daemon.client.job(runs)["created"]
        for seconds in (40 * DAY, -DAY):
            set_calendar(seconds)
            a_round_of(daemon)
            newest = daemon.client.jobs()[0]
            assert abs(newest["created"] - created - seconds) < 1000, "the daemon believes it"
            assert daemon.client.job(runs)["state"] == "running"
            waiting = daemon.client.job(waits)
            assert (waiting["state"], len(waiting["attempts"])) == ("waiting_retry", 1)
        short = daemon.client.submit(make_job("stop", ranks=1, time_limit="1s"))["id"]
        assert "its time limit of 1 s is over" in daemon.wait_for_end(short)["reason"]
        wait_for_file(daemon.run_dir(runs) / "waiting-0")
        (daemon.run_dir(runs) / "release").touch()
        assert daemon.wait_for_end(runs)["state"] == "succeeded"
        assert daemon.client.health()["uptime_seconds"] - before["uptime_seconds"] < 600
