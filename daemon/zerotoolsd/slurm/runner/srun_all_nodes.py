"""Runs one attempt on all nodes with one srun: starts and stops it, and reads the record of
each node.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from zerotools.jobs.slurm.job_directory import JobDirectory, read_record, write_record
from zerotoolsd.attempts import last_report
from zerotoolsd.queue import lifecycle
from zerotoolsd.slurm.runner.node import SETTINGS, STOP
from zerotoolsd.supervisor.attempt_plan import ENDED, EXIT, RUN
from zerotoolsd.supervisor.procfs import Process, children_of
from zerotoolsd.supervisor.signal_process import kill_process
from zerotoolsd.supervisor.transient_os_errors import NOT_READY

STEP_LOG = "srun.log"
PEER_SECONDS = 10.0
"""Seconds that the other nodes of an attempt have to end after one node has failed."""
KILL_SECONDS = 30.0
"""Seconds that the nodes have to end after that. Then srun is killed."""


class Srun(Protocol):
    """The process of an srun: the methods of `subprocess.Popen` that are used here."""

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


class InheritedSrun:
    """The srun of a killed process. After the kill it is a child of the process `parent`, which has
    no other children but this process.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def poll(self) -> int | None:
        """Return 0 if it has ended, else None."""
        return None if self._alive() else 0

    def kill(self) -> None:
        for each in self._alive():
            kill_process(each)

    def _alive(self) -> list[Process]:
        return [each for each in children_of(self._parent) if each.pid != os.getpid()]


class NodeStep:
    """One attempt that runs on the nodes `names`, in the order of the node numbers.

    `srun` is the process that has started it already; None: `begin` starts one.
    """

    def __init__(
        self,
        directory: JobDirectory,
        attempt: int,
        names: Sequence[str],
        srun: Srun | None = None,
    ) -> None:
        self._directory, self._attempt, self.names = directory, attempt, names
        self._attempt_directory = directory.attempt_path(attempt)
        self._srun = srun
        self._ending_since: float | None = None
        self._wanted: dict[str, Any] | None = None
        self._asked: dict[str, Any] | None = None
        self._killed_at: float | None = None

    @property
    def nodes(self) -> int:
        return len(self.names)

    def begin(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Write the settings for all nodes, and start srun, which starts the attempt on each
        node. Raises OSError.
        """
        write_record(self._attempt_directory / SETTINGS, {**settings, "nodes": self.nodes})
        with (self._attempt_directory / STEP_LOG).open("wb") as log:
            self._srun = subprocess.Popen(
                self.command(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                # A signal to the batch script's processes must not reach srun: nodes are asked by
                # file.
                start_new_session=True,
            )

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the srun command that starts this attempt on all nodes."""
        processors = environment.get("SLURM_CPUS_PER_TASK")
        return [
            "srun",
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes}",
            "--ntasks-per-node=1",
            *([f"--cpus-per-task={processors}"] if processors else []),
            *("--kill-on-bad-exit=0", "--mpi=none", "--input=none", "--cpu-bind=none"),
            "--export=ALL",
            *(sys.executable, "-P", "-m", "zerotoolsd.slurm.runner.node"),
            *(str(self._directory.path), str(self._attempt)),
        ]

    def began(self) -> dict[str, Any] | None:
        """Return the contents of `run.json` of node 0; None if the file does not exist yet."""
        return read_record(self._run_dir(0) / RUN)

    def is_over(self) -> bool:
        """Return whether srun has ended. If a node has failed, end the other nodes after
        PEER_SECONDS.
        """
        assert self._srun is not None
        if self._srun.poll() is not None:
            return True
        self._end_peers()
        self._write_request()
        return False

    def _end_peers(self) -> None:
        now = time.monotonic()
        if self._ending_since is None:
            if any(_ended_badly(self._record(node)) for node in range(self.nodes)):
                self._ending_since = now
            return
        if now - self._ending_since > PEER_SECONDS and self._killed_at is None:
            self.kill()
        if self._killed_at is not None and now - self._killed_at > KILL_SECONDS:
            assert self._srun is not None
            self._srun.kill()

    def ask(self, reason: str, grace_seconds: float | None = None) -> None:
        """Ask all nodes to save and end, within `grace_seconds`. `reason` is the reason of the
        stop. If the request cannot be written, `is_over` tries again.
        """
        self._wanted = {"reason": reason}
        if grace_seconds is not None:
            self._wanted["grace_seconds"] = grace_seconds
        self._write_request()

    def kill(self) -> None:
        """End the attempt on all nodes at once, without saving."""
        self._killed_at = time.monotonic()
        self._wanted = {"reason": "killed", "kill": True}
        self._write_request()

    def _write_request(self) -> None:
        if self._asked == self._wanted or self._wanted is None:
            return
        with suppress(OSError):
            write_record(self._attempt_directory / STOP, self._wanted)
            self._asked = self._wanted

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the nodes, in the order of their numbers, after srun has ended."""
        return [self._record(node) or self._lost(node) for node in range(self.nodes)]

    def _record(self, node: int) -> dict[str, Any] | None:
        run_dir = self._run_dir(node)
        return read_record(run_dir / EXIT) or read_record(run_dir / ENDED)

    def _lost(self, node: int) -> dict[str, Any]:
        run_dir = self._run_dir(node)
        if read_record(run_dir / RUN) is None:
            said = last_report.last_line(self._attempt_directory / STEP_LOG)
            cause = "its supervisor was not started" + (f": {said}" if said else "")
            return {"outcome": NOT_READY, "cause": cause}
        known = last_report.report_so_far(run_dir)
        step, path = known.checkpoint_step, known.checkpoint_path
        saved = {"step": step, "path": path, "found": known.checkpoint_found}
        return {
            "outcome": lifecycle.LOST,
            "cause": "it wrote no report of its end",
            "steps_done": (known.step or {}).get("step"),
            "progress": known.step,
            "evaluation": known.evaluation,
            "checkpoint": None if step is None else saved,
        }

    def _run_dir(self, node: int) -> Path:
        return self._directory.run_dir(self._attempt, node)


def settled_record(directory: JobDirectory, attempt: int, nodes: int) -> list[dict[str, Any]]:
    """Return the records of the nodes of an attempt that an earlier batch process has started."""
    return NodeStep(directory, attempt, [f"node {node}" for node in range(nodes)]).records()


def _ended_badly(record: Mapping[str, Any] | None) -> bool:
    good = (lifecycle.FINISHED, lifecycle.STOPPED)
    return record is not None and record.get("outcome") not in good


def step_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for srun: `environment` without the variables of sbatch that concern
    only the batch script.
    """
    dropped = ("SLURM_EXPORT_ENV", "SLURM_CPU_BIND", "SLURM_MEM_PER_NODE_FOR_STEP")
    return {name: value for name, value in environment.items() if name not in dropped}


_ORDER = (
    lifecycle.BAD_JOB,
    lifecycle.BAD_CHECKPOINT,
    lifecycle.NOT_STARTED,
    lifecycle.CRASHED,
    lifecycle.LOST,
    NOT_READY,
    lifecycle.KILLED,
    lifecycle.STOPPED,
    lifecycle.FINISHED,
)

Record = Mapping[str, Any]


def combined_record(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    """Return one record for the end of an attempt on several nodes. `records` are the records of
    its nodes, by node number.

    `names` are the names of the nodes, as users know them.
    """
    by_weight = sorted(range(len(records)), key=lambda node: _weight(records[node]))
    first, several = records[by_weight[0]], len(records) > 1
    found = dict(first)
    outcome = str(first.get("outcome"))
    if several and outcome not in (lifecycle.FINISHED, lifecycle.STOPPED):
        found["cause"] = f"{names[by_weight[0]]}: {first.get('cause')}"
    leader = records[0]
    for name in ("steps_done", "progress", "evaluation", "checkpoint"):
        found[name] = leader.get(name) or first.get(name)
    for name in ("peak_gpu_bytes", "peak_host_bytes"):
        values = [each[name] for each in records if type(each.get(name)) is int]
        found[name] = max(values, default=None)
    ran = [each["ran_seconds"] for each in records if isinstance(each.get("ran_seconds"), float)]
    if ran:
        found["ran_seconds"] = max(ran)
    found["unkillable"] = []  # Slurm kills remaining processes, and drains the node if it cannot
    following = ("closing", "uploading", "uploaded")
    found |= {name: leader[name] for name in following if leader.get(name)}
    return found


def _weight(record: Record) -> tuple[int, float]:
    outcome = record.get("outcome")
    rank = _ORDER.index(outcome) if outcome in _ORDER else _ORDER.index(lifecycle.CRASHED)
    ended = record.get("ended")
    return rank, ended if isinstance(ended, float) else float("inf")
