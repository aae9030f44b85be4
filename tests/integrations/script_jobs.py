"""Training programs as jobs of a real daemon whose ranks find their libraries imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.warm_interpreter import interpreter
from tests.daemon.daemons import Daemon, daemon_in
from tests.daemon.made_attempts import progress_of, wait_for_file
from tests.docs.tutorials import blocks
from zerotools.jobs.jobfile.parse import job_from_dict

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-your-own-script.md"


class Jobs:
    """Runs `program` as jobs, each in a directory of its own."""

    def __init__(self, daemon: Daemon, directory: Path, program: Path, python: Path) -> None:
        self.daemon = daemon
        self._directory = directory
        self._program = program
        self._python = python

    def submit(
        self, name: str, *words: str, ranks: int = 1, program: str | None = None, **changes: Any
    ) -> int:
        """Submit one job, of the source `program` if it is given; returns its number."""
        work = self._directory / name
        work.mkdir()
        (work / "train.py").write_text(program or self._program.read_text("utf-8"), "utf-8")
        table: dict[str, Any] = {"command": ["train.py", *words], "directory": str(work)}
        job = {
            "engine": "script",
            "device": "cpu",
            "ranks": ranks,
            "python": str(self._python),
            "output_dir": str(work / "out"),
        }
        table |= changes.pop("script", {})
        spec = job_from_dict({**job, "script": table, **changes}, source="job")
        return int(self.daemon.client.submit(spec)["id"])

    def ended(self, job: int, state: str = "succeeded") -> dict[str, Any]:
        """The job at its end. The callback has swallowed no exception."""
        found = self.daemon.wait_for_end(job)
        log = (self.daemon.run_dir(job) / "rank-0.log").read_text()
        assert found["state"] == state, f"{found['reason']}\n{log}"
        assert "zerotools.worker: " not in log, log
        return found

    def stopped(self, name: str, *words: str, **changes: Any) -> dict[str, Any]:
        """A job that is cancelled when its program makes the file `holding`."""
        job = self.submit(name, *words, **changes)
        wait_for_file(self._directory / name / "holding")
        self.daemon.client.cancel(job)
        return self.ended(job, "cancelled")

    def resumed(self, job: dict[str, Any]) -> dict[str, Any]:
        """The end of the job that resumes `job`."""
        return self.ended(self.daemon.client.resume(job["id"])["id"])

    def checkpoints(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """What was reported of each checkpoint."""
        events = progress_of(self.daemon.run_dir(job["id"]))
        return [each for each in events if each.get("event") == "checkpoint"]

    def log(self, job: dict[str, Any]) -> str:
        """What rank 0 has printed."""
        return (self.daemon.run_dir(job["id"]) / "rank-0.log").read_text()


@contextmanager
def jobs_of(program: Path, modules: Sequence[str], directory: Path) -> Iterator[Jobs]:
    """Start a daemon for jobs of `program`, which find `modules` imported."""
    with (
        interpreter(directory / "python", modules, ["train.py"]) as python,
        daemon_in(directory / "state") as daemon,
    ):
        yield Jobs(daemon.start(), directory, program, python)


def metrics(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`."""
    lines = (Path(job["output_dir"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(job: dict[str, Any]) -> dict[int, float]:
    """The loss of each step that has one."""
    return {line["step"]: line["loss"] for line in metrics(job) if "loss" in line}


def documented(*parts: str) -> str:
    """The Python of the page of the documents that has one of `parts`, block after block."""
    found = [each.text for each in blocks(PAGE.read_text("utf-8")) if each.language == "python"]
    return "\n".join(text for part in parts for text in found if part in text)


def bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with zerotools and the standard library alone."""
    command = [sys.executable, "-I", "-S", "-c"]
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    return subprocess.run([*command, path + code], capture_output=True, text=True, check=False)
