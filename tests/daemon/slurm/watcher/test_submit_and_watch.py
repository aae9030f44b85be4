from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.small_disks import SmallDisk
from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import calls, programs
from zerotools.io.telemetry.datagram_sender import Sender
from zerotools.jobs.slurm.job_directory import END, VIEW, JobDirectory, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job
from zerotoolsd.slurm.watcher.submit_and_watch import (
    ReportRelay,
    SlurmWatcher,
    is_end_reported,
    key_of,
    note_end_reported,
    submit_once,
)
from zerotoolsd.supervisor.attempt_plan import OWN


class Kept(Sender):
    """What was sent."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sent: list[dict[str, Any]] = []

    def send(self, tree: dict[str, Any], *, wait: bool = False) -> None:
        self.sent.append(tree)


def test_steps_and_logs_of_all_attempts_come_here_in_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = r"printf '4711\tRUNNING\tNone\t\t1\tn1\tx\n'"
    commands, home = programs(tmp_path, squeue=listed), tmp_path / "home"
    directory, _ = submit_job(commands, home, job({"nodes": 2}))
    jobs = SlurmJobs(commands, home)
    sender, here = Kept(), tmp_path / "here"
    here.mkdir()
    relay = ReportRelay(jobs, directory.path.name, sender, here)

    def attempt(number: int, *lines: dict[str, Any]) -> None:
        for node in (0, 1):
            run_dir = directory.run_dir(number, node)
            run_dir.mkdir(parents=True, exist_ok=True)
            for rank in (0, 1):
                (run_dir / f"rank-{rank}.log").write_text(f"{number}.{node}.{rank}\n")
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (directory.run_dir(number, 0) / "progress.jsonl").write_text(f"{text}half a li")

    def view(*numbers: int) -> dict[str, Any]:
        attempts = [{"number": number, "ended": None} for number in numbers]
        own = {"submission": 1, "ranks_of_node": 2}
        tree = {**jobs.job("4711"), "attempts": attempts, "world_size": 4, "slurm": own}
        write_record(directory.path / VIEW, tree)
        return jobs.job("4711")

    attempt(1, {"event": "step", "step": 1}, {"event": "beat"}, {"event": "error", "rank": 0})
    relay.catch_up(view(1))
    seen, asked = view(1), len(calls(tmp_path, "squeue"))
    relay.catch_up(seen)
    assert len(calls(tmp_path, "squeue")) == asked, "not once for each rank"
    assert sender.sent == [{"event": "step", "step": 1}]
    attempt(2, {"event": "checkpoint", "step": 2})
    relay.catch_up(view(1, 2))
    assert sender.sent[1:] == [{"event": "checkpoint", "step": 2}]
    assert capfd.readouterr().out == "1.0.0\n2.0.0\n"
    assert (here / "rank-3.log").read_text() == "1.1.1\n2.1.1\n"


def hand(tmp_path: Path) -> JobDirectory:
    home = tmp_path / "home"
    commands = programs(tmp_path, squeue="exit 0")
    job_dir = tmp_path / "jobs" / "7"
    job_dir.mkdir(parents=True, exist_ok=True)
    key = key_of(job_dir, "tiny")
    return submit_once(commands, SlurmJobs(commands, home), home, job({}), key)


def test_an_attempt_finds_what_the_one_before_has_left(tmp_path: Path) -> None:
    first = hand(tmp_path)
    assert hand(tmp_path) == first
    assert len(calls(tmp_path, "sbatch")) == 1
    assert (first.job() or {})["attended"] is True


def test_an_end_is_told_once_and_an_attempt_after_that_submits_again(tmp_path: Path) -> None:
    directory = hand(tmp_path)
    write_record(directory.submission_path(1) / END, {"state": "failed", "reason": "x"})
    assert hand(tmp_path).submissions() == [1]
    assert not is_end_reported(directory)
    note_end_reported(directory, tmp_path, 64)
    assert not is_end_reported(directory)  # whoever tells it may be killed before it has
    write_record(tmp_path / "exit.json", {"ranks": [{"exit_code": 64}]})
    assert hand(tmp_path).submissions() == [1, 2]
    assert len(calls(tmp_path, "sbatch")) == 2


def test_a_daemon_that_has_lost_its_state_does_not_find_jobs_of_before(tmp_path: Path) -> None:
    first = hand(tmp_path)
    assert hand(tmp_path) == first
    shutil.rmtree(tmp_path / "jobs")
    assert hand(tmp_path) != first


def test_jobs_of_two_daemons_are_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert key_of(tmp_path / "a", "x") != key_of(tmp_path / "b", "x")


def test_the_word_of_a_job_of_another_user_is_where_that_user_may_write(tmp_path: Path) -> None:
    (tmp_path / OWN).mkdir()
    key = key_of(tmp_path, "x")
    assert [path.name for path in tmp_path.iterdir()] == [OWN]
    assert key_of(tmp_path, "x") == key


def test_a_full_disk_is_no_fault_of_the_job(small_disk: SmallDisk) -> None:
    small_disk.fill()
    with pytest.raises(OSError, match="No space left"):
        key_of(small_disk.path, "x")


def test_a_cancel_waits_for_room_on_the_disk(
    tmp_path: Path, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = small_disk.path
    monkeypatch.setenv("ZEROTOOLS_SLURM_DIR", str(home))
    commands = programs(tmp_path, squeue="exit 0")
    watcher = SlurmWatcher(tmp_path, Kept(), job({}), commands)
    directory = submit_once(commands, SlurmJobs(commands, home), home, job({}), "key")
    small_disk.fill()
    assert not watcher._cancel(directory.path.name)
    small_disk.free()
    assert watcher._cancel(directory.path.name)
    assert directory.stop() is not None


def test_a_job_that_waits_for_long_is_looked_at_less_often(tmp_path: Path) -> None:
    watcher = SlurmWatcher(tmp_path, Kept(), job({}), programs(tmp_path))
    now = time.monotonic()
    for quiet, seconds in ((1.0, 3.0), (100.0, 10.0), (9000.0, 30.0)):
        watcher._reported_at = now - quiet
        assert watcher._pause({"state": "queued"}) == pytest.approx(seconds, abs=1.0)
        assert watcher._pause({"state": "running"}) == 3.0
