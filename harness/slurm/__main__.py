"""Trains a job on two nodes of a Slurm cluster. Each round has one fault, such as a killed process.

    python -m harness.slurm [--moments 10] [--steps 120] [--only slurmctld ...] [--directory DIR]

A private cluster of three nodes on loopback trains a job of 2 x 2 ranks on CPUs, without a daemon.
There are ten rounds for each fault, at ten moments of the run. The faults:

- SIGKILL of slurmctld or a slurmd, which is then started again, or of all processes of a node
- SIGKILL of a rank, a supervisor, its companion process, or the process that runs attempts
- a job in a partition of higher priority takes the nodes
- an administrator requeues the job, which then has only one node

After each round, these conditions must be true: the job has succeeded, no two of its attempts ran
at the same time, all losses are the same as in a run without a fault, the last checkpoint is
undamaged, and no process is left.

Needs root and Debian's packages (`./scripts/slurm`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.launching import job
from harness.patience import Deadline
from harness.slurm.cluster import SlurmCluster
from zerotools.core.errors import BadRequest, SlurmUnreachable
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job
from zerotools.jobs.states import FAILED, HALTED, TERMINAL
from zerotools.runs import find_job_checkpoints

PROCESSES = ("rank", "supervisor", "companion", "batch")
TARGETS = ("slurmctld", "n1", "node", *PROCESSES, "preempted", "requeued")
EVERY = 20
ROUND_SECONDS = 240.0
NODES = 2
MEMORY = ("--mem=900",)
"""Slurm options of a job: its memory on each node."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--only", nargs="*", default=list(TARGETS))
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="zerotools-") as name:
        directory = options.directory or Path(name)
        directory.mkdir(exist_ok=True)
        with SlurmCluster(directory / "cluster") as cluster:
            rounds = Rounds(cluster, directory, options.steps)
            return rounds.all(options.only, options.moments)


class Rounds:
    """Runs rounds on one cluster. The files are below `directory`."""

    def __init__(self, cluster: SlurmCluster, directory: Path, steps: int) -> None:
        self._cluster, self._directory, self._steps = cluster, directory, steps
        self._text = directory / "text.txt"
        self._text.write_text("".join(f"{n} sheep, {n * 7 % 13} black.\n" for n in range(400)))
        self._commands = SlurmCommands(cluster.env)
        self._home = directory / "home"
        self._jobs = SlurmJobs(self._commands, self._home)
        self._number = 0
        self._wanted: dict[int, float] = {}

    def all(self, targets: list[str], moments: int) -> int:
        """Run all rounds; return 1 if a check failed."""
        began = time.monotonic()
        self._wanted = self.round(None, 0)[1]
        print(f"undisturbed: {time.monotonic() - began:.1f} s, {self._steps} steps", flush=True)
        broken = 0
        for target in targets:
            attempts, seconds, wrong = [], [], []
            for moment in range(moments):
                began = time.monotonic()
                try:
                    count, losses = self.round(target, self._steps * moment // moments)
                    wrong += self._check(losses, exactly=target != "requeued")
                    attempts.append(count)
                except AssertionError as error:
                    wrong.append(f"moment {moment}: {error}")
                seconds.append(time.monotonic() - began)
            broken += len(wrong)
            print(
                f"{target}: {moments - len(wrong)} of {moments} held, attempts {attempts}, "
                f"{min(seconds):.1f} to {max(seconds):.1f} s",
                flush=True,
            )
            for each in wrong:
                print(f"  {each}", flush=True)
        return 1 if broken else 0

    def _check(self, losses: dict[int, float], *, exactly: bool) -> list[str]:
        """Compare the losses with the losses of the run without a fault, and return the errors.

        Without `exactly`, small differences are allowed: with another number of ranks, sums are
        rounded differently.
        """
        near = 0.0 if exactly else 2e-3
        differing = [
            step
            for step, loss in self._wanted.items()
            if step not in losses or abs(losses[step] - loss) > near * loss
        ]
        return [f"{len(differing)} losses differ, the first at {differing[0]}"] if differing else []

    def round(self, target: str | None, step: int) -> tuple[int, dict[int, float]]:
        """Run the job with the fault `target` at the step `step` (0: at its start).

        Returns (the number of attempts, the losses).
        """
        self._number += 1
        output = self._directory / f"out-{self._number}"
        tree = job(
            self._text,
            ranks=2,
            train={"steps": self._steps},
            checkpoint={"every": EVERY},
            output_dir=str(output),
        )
        fewest = 1 if target == "requeued" else NODES
        slurm = {"nodes": fewest, "max_nodes": NODES, "options": MEMORY}
        directory, number = self.submitted({**tree, "slurm": slurm})
        if target is not None:
            wait_for(lambda: self._is_at(step, directory, number), "the step")
            self._strike(target, directory, number)
        view = self.ended(directory, number)
        find_job_checkpoints.verify_checkpoint_files(
            output / find_job_checkpoints.directory_name(self._steps)
        )
        return len(view["attempts"]), _losses(output)

    def submitted(self, tree: dict[str, Any]) -> tuple[JobDirectory, str]:
        """Submit the job `tree`. Return (its directory, Slurm's job id)."""
        spec = job_from_dict({**tree, "backend": "slurm"}, source="job")
        directory, number = submit_job(self._commands, self._home, spec)
        assert number is not None, "Slurm did not say which job it queued"
        return directory, number

    def ended(self, directory: JobDirectory, number: str) -> dict[str, Any]:
        """Wait until the job has succeeded and none of its processes is left. Return the view of
        the job.
        """
        wait_for(lambda: self._is_over(directory.path.name), "the end of the job")
        view: dict[str, Any] = self._jobs.job(directory.path.name)
        assert view["state"] == "succeeded", f"{view['state']}: {view['reason']}"
        _refuse_overlap(directory)
        wait_for(lambda: not _left(directory), "the end of its processes")
        wait_for(lambda: not self._waits_or_goes(number), "Slurm to be done with it")
        return view

    def _is_at(self, step: int, directory: JobDirectory, number: str) -> bool:
        if not self._runs(number):
            self._cluster.mend()
            return False
        return self._step_of(directory) >= step

    def _runs(self, number: str) -> bool:
        found = self._commands.jobs([number]).get(number)
        return found is not None and found.state != "PENDING"

    def _waits_or_goes(self, number: str) -> bool:
        with suppress(SlurmUnreachable):
            found = self._commands.jobs([number]).get(number)
            return found is not None and not found.is_over
        return True

    @staticmethod
    def _step_of(directory: JobDirectory) -> int:
        newest = max(directory.attempts(), default=0)
        lines = _records(directory.run_dir(newest, 0) / "progress.jsonl")
        return max((int(each["step"]) for each in lines if each.get("event") == "step"), default=0)

    def _is_over(self, name: str) -> bool:
        """Return whether the job has ended. If Slurm delays its start, the job is started now."""
        return self._urged(name)["state"] in TERMINAL

    def _urged(self, name: str) -> dict[str, Any]:
        """Return the view of the job, after ending delays as an administrator would."""
        view = self._jobs.job(name)
        if view["slurm"]["state"] not in (None, "RUNNING"):
            self._cluster.mend()
        if view["slurm"]["state"] == "PENDING" and "BeginTime" in str(view["reason"]):
            with suppress(BadRequest, SlurmUnreachable):
                self._commands.begin_now(str(view["slurm"]["id"]))
        return view

    def _strike(self, target: str, directory: JobDirectory, number: str) -> None:
        if target in ("slurmctld", "n1"):
            self._cluster.kill(target)
            time.sleep(1.0)
            self._cluster.start_again(target)
            wait_for(self._cluster.answers, "the controller to answer")
            self._go_on_where_forgotten(directory.path.name)
        elif target == "node":
            self._cluster.kill_node("n1")
            wait_for(lambda: not self._runs(number), "Slurm to notice it")
            self._cluster.start_again("n1")
        elif target == "preempted":
            urgent = ["sbatch", "-p", "urgent", "-N3", "--mem=1900", "-o", "/dev/null"]
            self._cluster.run([*urgent, "--wrap", "sleep 3"])
            wait_for(lambda: not self._runs(number), "the preemption")
        elif target == "requeued":
            self._cluster.run(["scontrol", "requeue", number])
            wait_for(lambda: not self._runs(number), "the requeue")
            self._cluster.run(["scontrol", "update", f"JobId={number}", "NumNodes=1"])
        else:
            pid = _pid_of(target, directory)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _go_on_where_forgotten(self, name: str) -> None:
        """Resume the job if Slurm's controller has lost it.

        This can happen if the controller is killed right after the submission. The documentation
        tells users to resume the job then.
        """
        wait_for(lambda: self._step_of_newest(name) or self._is_halted(name), "a sign of life")
        if self._is_halted(name):
            self._jobs.resume(name)

    def _is_halted(self, name: str) -> bool:
        return self._jobs.job(name)["state"] in (FAILED, HALTED)

    def _step_of_newest(self, name: str) -> bool:
        view = self._urged(name)
        return view["slurm"]["state"] is not None and (
            view["state"] in TERMINAL or bool(view["progress"])
        )


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    """Wait until the function `is_there` returns True.

    Raises:
        AssertionError: this did not happen in time. The message contains `what`.
    """
    deadline = Deadline(ROUND_SECONDS)
    while not is_there():
        assert not deadline.has_passed(), f"{what} did not come"
        time.sleep(0.2)


def _pid_of(target: str, directory: JobDirectory) -> int | None:
    """Return the pid of the process `target` of the newest attempt; None if it has not started."""
    newest = max(directory.attempts(), default=0)
    for path in (directory.run_dir(newest, 1), directory.run_dir(newest, 0)):
        run = _record(path / "run.json")
        if target == "supervisor" and run:
            return int(run["pid"])
        if target == "rank" and run and run.get("ranks"):
            return int(run["ranks"][-1]["pid"])
    name = {"companion": "beat-1", "batch": "beat-master"}.get(target)
    found = _record(directory.attempt_path(newest) / name) if name else None
    return int(found["pid"]) if found else None


def _record(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _records(path: Path) -> list[dict[str, Any]]:
    found = []
    with suppress(OSError):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def _losses(output: Path) -> dict[int, float]:
    """Return the loss of each step. If a step was done several times, this is the last loss."""
    lines = _records(output / "metrics.jsonl")
    return {int(each["step"]): float(each["loss"]) for each in lines if "loss" in each}


def _refuse_overlap(directory: JobDirectory) -> None:
    """Check that no attempt began before the previous one had ended.

    The times are those in the progress files of node 0.
    """
    last = 0.0
    for name in directory.attempts():
        lines = _records(directory.run_dir(name, 0) / "progress.jsonl")
        times = [float(each["time"]) for each in lines if "time" in each]
        if times:
            assert min(times) >= last - 0.5, (
                f"attempt {name} began before the previous one had ended"
            )
            last = max(times)


def _left(directory: JobDirectory) -> list[int]:
    """Return the pids of all processes of the job."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or ()
        if any(str(directory.path) in word for word in words):
            found.append(int(process.info["pid"]))
    return found


if __name__ == "__main__":
    sys.exit(main())
