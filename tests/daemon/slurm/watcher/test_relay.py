from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.slurm.fake_programs import programs
from tests.jobs.tables.test_slurm import job
from zerotools.io.telemetry.datagrams import Sender
from zerotools.jobs.slurm.job_directory import VIEW, write_record
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submitting import submit_job
from zerotoolsd.slurm.watcher.relay import Relay


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
    relay = Relay(jobs, directory.path.name, sender, here)

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
    relay.catch_up(view(1))
    assert sender.sent == [{"event": "step", "step": 1}]
    attempt(2, {"event": "checkpoint", "step": 2})
    relay.catch_up(view(1, 2))
    assert sender.sent[1:] == [{"event": "checkpoint", "step": 2}]
    assert capfd.readouterr().out == "1.0.0\n2.0.0\n"
    assert (here / "rank-3.log").read_text() == "1.1.1\n2.1.1\n"
