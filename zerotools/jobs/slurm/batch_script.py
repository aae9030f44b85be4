"""A job as a script for sbatch. A value, which `submit --slurm --dry-run` shows.

The script starts one process, which starts a supervisor on every node by srun, waits for them all,
and restarts them if that is right (`zerotoolsd.slurm.runner.batch`).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import zerotools
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.slurm.job_directory import HOME_VARIABLE, JOB, LOG, SUBMISSIONS
from zerotools.jobs.tables.spec import JobSpec

COMMENT = "zerotools:"
"""The beginning of our jobs' comment, which identifies a job with a lost number."""
_EXIT_UNSHARED = 78


def batch_script(
    spec: JobSpec, directory: Path, submission: int, token: str, python: str, path: str
) -> str:
    """Return the text of the script. `python` runs it on the nodes; `path` is PATH there."""
    lines = [f"#SBATCH {option}" for option in options_of(spec, directory, submission, token)]
    job = shlex.quote(str(directory / JOB))
    where = shlex.quote(str(directory))
    return "\n".join(
        (
            "#!/bin/sh",
            *lines,
            f"# Made by zerotools {zerotools.__version__}.",
            f"if ! [ -r {job} ]; then",
            f'    echo "zerotools: node $(hostname) does not see {_in_quotes(directory)}; set '
            f'{HOME_VARIABLE} to a directory that all nodes share, and submit again" >&2',
            f"    exit {_EXIT_UNSHARED}",
            "fi",
            f"if ! [ -x {shlex.quote(python)} ]; then",
            f'    echo "zerotools: node $(hostname) does not have {_in_quotes(python)}; install '
            'zerotools where all nodes have it, and submit again" >&2',
            f"    exit {_EXIT_UNSHARED}",
            "fi",
            f"export PATH={shlex.quote(path)}",
            "unset SLURM_EXPORT_ENV",
            f"exec {shlex.quote(python)} -P -m zerotoolsd.slurm.runner.batch {where} {submission}",
            "",
        )
    )


def options_of(spec: JobSpec, directory: Path, submission: int, token: str) -> Iterator[str]:
    """Yield the options of sbatch, one text each, quoted as in a shell."""
    slurm = spec.slurm
    given = {
        "job-name": name_in_slurm(spec.name),
        "comment": f"{COMMENT}{token}",
        "output": str(directory / SUBMISSIONS / str(submission) / LOG),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodes": _nodes(slurm.node_counts),
        "ntasks-per-node": "1",
        "cpus-per-task": _processors(spec),
        "gres": _gres(spec),
        "mem": slurm.memory,
        "time": _minutes(spec),
        "signal": f"B:TERM@{slurm.warning_seconds}",
    }
    for name, value in given.items():
        if value is not None:
            yield f"--{name}={shlex.quote(value)}"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    yield "--open-mode=append"
    # Nothing of the submitter's environment: the job has its own, and Slurm adds its variables.
    yield "--export=NIL"
    yield "--kill-on-invalid-dep=yes"
    yield from map(shlex.quote, slurm.options)


def name_in_slurm(name: str | None) -> str:
    """Return the name of a job there."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name or "zerotools")[:100]


def _nodes(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _processors(spec: JobSpec) -> str | None:
    if spec.slurm.cpus_per_rank is not None:
        return str(spec.slurm.cpus_per_rank * spec.world_size)
    return str(spec.world_size) if spec.device == "cpu" else None


def _gres(spec: JobSpec) -> str | None:
    if spec.device == "cpu":
        return None
    kind = "" if spec.slurm.gpu_type is None else f":{spec.slurm.gpu_type}"
    return f"gpu{kind}:{spec.world_size}"


def _minutes(spec: JobSpec) -> str | None:
    seconds = spec.slurm.time_seconds
    if seconds is None and spec.time_limit is not None:
        seconds = seconds_of(spec.time_limit) + spec.slurm.warning_seconds
    return None if seconds is None else str(max(1, math.ceil(seconds / 60)))


def _in_quotes(value: Path | str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", str(value))
