"""An allocation without Slurm: `srun` starts all nodes here, and `scontrol` knows one job.

The processes of batch scripts and of nodes are forked: their imports take half a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import forked
from harness.faults import warm
from harness.forked import Forked
from harness.warm_interpreter import interpreter
from tests.daemon.waiting import wait_for
from tests.jobs.jobfile_tables.test_slurm import job
from tests.jobs.slurm.fake_programs import calls, programs
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.slurm.submit_to_slurm import submit_job

SRUN = """
nodes=1
for each in "$@"; do case "$each" in --nodes=*) nodes=${each#--nodes=};; esac; done
while [ "${1#-}" != "$1" ]; do shift; done
[ "$1" = "$BATCH_PYTHON" ] || exit 9
shift
node=0
while [ $node -lt $nodes ]; do SLURM_NODEID=$node "$NODE_PYTHON" "$@" & node=$((node + 1)); done
wait
"""
SCONTROL = """
case "$*" in
*hostnames*) printf 'n1\\nn2\\nn3\\n' | head -n "$SLURM_JOB_NUM_NODES";;
*"show node"*) echo NodeName=n1 NodeAddr=127.0.0.1;;
*"show job"*) cat $0.job;;
esac
"""


@contextmanager
def forked_nodes(directory: Path) -> Iterator[None]:
    """Inside the context, nodes are forked."""
    with interpreter(directory / "python", warm.MODULES) as python:
        FakeAllocation.python = python
        try:
            yield
        finally:
            FakeAllocation.python = Path(sys.executable)


class FakeAllocation:
    """The job `command` of the engine script, submitted, and allocated `nodes`."""

    python = Path(sys.executable)
    """What nodes are run by: see `forked_nodes`."""

    def __init__(
        self, directory: Path, command: Sequence[str], nodes: int = 1, **changes: Any
    ) -> None:
        self._directory, self._nodes = directory, nodes
        tree = {
            "engine": "script",
            "ranks": 1,
            "model": None,
            "data": None,
            "train": None,
            "script": {"command": list(command), "directory": str(directory)},
            "output_dir": str(directory / "out"),
            "max_restarts": 0,
            **changes,
        }
        slurm = tree.pop("slurm", {})
        commands = programs(directory, srun=SRUN, scontrol=SCONTROL, squeue="exit 0")
        self.home = directory / "home"
        self.job: JobDirectory
        self.job, _ = submit_job(commands, self.home, job({"nodes": nodes, **slurm}, **tree))
        self.jobs = SlurmJobs(commands, self.home)
        self.controller_says("RUNNING")

    def controller_says(self, state: str | None) -> None:
        """What `scontrol show job` answers; None: it does not know the job."""
        token = (self.job.submission(1) or {})["token"]
        text = f"JobId=4711 JobState={state} Reason=None Comment=zerotools:{token} NumNodes=1"
        path = self._directory / "bin" / "scontrol.job"
        path.write_text(text if state else "")

    def begin(self, submission: int = 1) -> Forked:
        """Slurm starts a copy of the batch script of a submission."""
        root = Path(__file__).resolve().parents[4]
        env = {
            **os.environ,
            "PATH": f"{self._directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{root}:{root / 'daemon'}",
            "BATCH_PYTHON": sys.executable,
            "NODE_PYTHON": str(self.python),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_JOB_NUM_NODES": str(self._nodes),
            "SLURMD_NODENAME": "n1",
        }
        words = ["-m", "zerotoolsd.slurm.runner.batch", str(self.job.path), str(submission)]
        with (self._directory / "batch.log").open("ab") as log:
            return forked.start(warm.MODULES, words, cwd=Path.cwd(), env=env, out=log)

    def log(self) -> str:
        """What all copies said."""
        return (self._directory / "batch.log").read_text()

    def lines(self, attempt: int = 1, node: int = 0) -> list[str]:
        """What rank 0 of a node wrote."""
        path = self.job.run_dir(attempt, node) / "rank-0.log"
        return path.read_text().splitlines() if path.exists() else []

    def asked(self, program: str) -> list[str]:
        """How a program of Slurm was called."""
        return calls(self._directory, program)

    def wait_for(self, is_there: Callable[[], object], what: str) -> None:
        """Raises AssertionError: it does not come."""
        try:
            wait_for(is_there, what, 60.0)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.log()}") from None
