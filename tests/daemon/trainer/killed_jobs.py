"""Jobs of a real zerotoolsd to which something is done while they train: what rounds share."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.launching import job
from tests.daemon.daemons import Daemon
from tests.daemon.trainer.tensors import digest
from tests.daemon.waiting import wait_for
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.runs import find_job_checkpoints

CONFIG = """
[limits]
cpu_ranks = 2
[stop]
grace_seconds = 60.0
[retry]
first_seconds = 0.05
"""
SECONDS = 300.0
_WIDE = {"hidden_size": 256, "intermediate_size": 1024}
"""So that what is done with a checkpoint takes long enough to be met."""


def wide_job(
    place: Path, name: str, stage: int, steps: int, checkpoint: dict[str, Any]
) -> dict[str, Any]:
    """A job of two ranks with a text of its own, whose output is `place`/out."""
    place.mkdir()
    (place / "text").write_text("one sheep, two sheep, and a black one\n" * 200)
    tree = job(
        place / "text",
        ranks=2,
        zero={"stage": stage},
        train={"steps": steps},
        checkpoint=checkpoint,
    )
    tree["model"] = {"config": {**tree["model"]["config"], **_WIDE}}
    return tree | {"output_dir": str(place / "out"), "name": name}


class KilledJob:
    """A job, its attempts, and what was done to it."""

    def __init__(self, daemon: Daemon, tree: dict[str, Any]) -> None:
        self.daemon, self.tree, self.output = daemon, tree, Path(tree["output_dir"])
        self.kills: list[str] = []
        self.attempt = 1
        self.job: int = daemon.client.submit(job_from_dict(tree, source="job"))["id"]

    @property
    def directory(self) -> Path:
        return self.daemon.run_dir(self.job, self.attempt)

    def is_over(self) -> bool:
        return self.daemon.client.job(self.job)["state"] in ("succeeded", "failed", "cancelled")

    def told(self, attempt: int | None = None) -> list[dict[str, Any]]:
        """What was told of the newest attempt, or another."""
        path = self.daemon.run_dir(self.job, attempt or self.attempt) / "progress.jsonl"
        lines = path.read_text("utf-8").splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pid_that_runs(self, *words: str) -> int | None:
        """The process of this job whose command has these words, one behind the other."""
        wanted = "\0".join(words).encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
                if wanted in command and os.fsencode(self.output) in command:
                    return int(entry.name)
        return None

    def end(self, number: int | None = None) -> dict[str, Any]:
        """This job, or another, once it has succeeded."""
        number = self.job if number is None else number

        def is_over() -> bool:
            view = self.daemon.client.job(number)
            assert view["state"] not in ("failed", "held", "cancelled"), view["reason"]
            return bool(view["state"] == "succeeded")

        wait_for(is_over, f"the end of job {number}", SECONDS)
        return self.daemon.client.job(number)

    def compare(self, place: Path, steps: int) -> None:
        """With a job to which nothing was done."""
        alone = {**self.tree, "output_dir": str(place), "checkpoint": {}}
        self.end(self.daemon.client.submit(job_from_dict(alone, source="job"))["id"])
        last = find_job_checkpoints.directory_name(steps)
        assert digest(self.output / last) == digest(place / last)
