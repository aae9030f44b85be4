"""Makes the supervisor's plan for an attempt: the commands, the environment and the limits of its
ranks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.io.stores.parse_url import lies_in
from zerotools.jobs.jobfile_tables.check_store_urls import in_store
from zerotools.jobs.jobfile_tables.script import MODEL
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.stall import limits_of
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN, LaunchBackend
from zerotoolsd.attempts.backends.spawn_supervisor import spawn_child
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import SpawnChild
from zerotoolsd.attempts.choose_numa_binding import RankBindings
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.attempts.launcher_command import (
    command_of,
    finder_command,
    watching_command,
)
from zerotoolsd.attempts.resource_limits import attempt_limits, declared_limits
from zerotoolsd.config.config_tables import DataCacheConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.attempt_plan import FINDER, NOTIFY, Plan
from zerotoolsd.supervisor.heartbeats.stall_limits import COMPLETE
from zerotoolsd.users.start_as_submitter import JobUser

SCRIPT = "script"
DATA_CACHE = "data-cache"
"""Name of the directory for tokenized data, inside the state directory."""
EXPORTING = Path(__file__).parents[1] / "children" / "export.py"
MIRRORING = Path(__file__).parents[1] / "children" / "mirror.py"
THINNING = Path(__file__).parents[1] / "children" / "thin.py"
ATTENDING_ENTRY = Path(__file__).parents[1] / "slurm" / "watcher" / "entry.py"
TRAINER_ENTRY = Path(__file__).parents[1] / "trainer" / "entry.py"

RankCommand = Callable[[JobSpec, Path], tuple[str, ...]]
"""A function of a job and its run directory that returns the command of one rank."""


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """The settings of the daemon that are the same for the supervisors and ranks of all attempts.

    The ranks have the `umask` of the daemon and connect to its `socket`. `backend` says how
    supervisors are started, and `spawn` starts those that are child processes.
    """

    config: Config
    command: RankCommand
    umask: int
    socket: Path | None = None
    backend: LaunchBackend = CHILDREN
    spawn: SpawnChild = spawn_child


@dataclass(frozen=True, kw_only=True)
class EarlierCheckpoints:
    """The paths of checkpoints that earlier attempts of the job have reported, the newest
    first.

    `newest` has the last checkpoint of each attempt. `by_program` has the checkpoints that
    the program of the job has reported itself.
    """

    newest: Sequence[str] = ()
    by_program: Sequence[str] = ()


NOTHING_EARLIER = EarlierCheckpoints()


_RANK_VARIABLES = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"),
)
"""Environment variables that are removed from the environment of every job."""


def trainer_command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
    """Return the command of the built-in trainer, run by the Python interpreter of the job."""
    python = spec.python or sys.executable
    return (python, "-P", str(TRAINER_ENTRY), "--run-dir", str(run_dir))


def closing_command(spec: JobSpec, output_dir: str) -> tuple[str, ...]:
    """Return the command that runs after a finished training, with the Python interpreter of the
    daemon.

    The result is empty if the job needs no such command, or if another node (node 0) runs the
    command.
    """
    dtype = spec.checkpoint.export_on_finish
    # Not affected by the job's PYTHONPATH, which is for its own interpreter.
    command = (sys.executable, "-E", "-P", str(EXPORTING), output_dir)
    return () if dtype is None or spec.rendezvous.node_rank else (*command, dtype)


def exporting_command(spec: JobSpec, output_dir: str) -> tuple[str, ...]:
    """Return the command that exports the evaluated model before the ranks start.

    The daemon's interpreter runs the command. The result is empty if the job is not an evaluation.
    """
    if spec.script.evaluates is None:
        return ()
    evaluated = ("--evaluated", spec.script.evaluates, output_dir)
    return (sys.executable, "-E", "-P", str(EXPORTING), *evaluated)


def thinning_command(
    spec: JobSpec, output_dir: str, job_id: int, socket: Path | None
) -> tuple[str, ...]:
    """Return the command that makes older checkpoints smaller (thins them) after each new
    checkpoint.

    The daemon's interpreter runs the command. The result is empty if the job has no
    `checkpoint.thin_after`. `socket` is the socket of the daemon, which knows the checkpoints
    that other jobs need.
    """
    keep = spec.checkpoint.thin_after
    if keep is None or socket is None or spec.rendezvous.node_rank:
        return ()
    command = (sys.executable, "-E", "-P", str(THINNING), output_dir, str(keep))
    named = () if spec.resume_from is None else (spec.resume_from,)
    return (*command, str(socket), str(job_id), *named)


def known_as(job: JobRow) -> str:
    """Return the name of the job in an object store.

    The name contains neither the number of the job nor the machine, because under Slurm both change
    at a restart.
    """
    return f"{job.uid}:{job.created!r}:{job.output_dir}"


def mirroring_commands(
    spec: JobSpec, output_dir: str, job: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two commands: the first downloads a checkpoint before the ranks start, and the second
    uploads saved checkpoints.

    The interpreter of the daemon runs both commands, on node 0. `job` is the name of the job in the
    store.
    """
    saving = spec.checkpoint
    given = spec.resume_from if in_store(spec.resume_from) else None
    if spec.rendezvous.node_rank or (saving.upload_to is None and given is None):
        return (), ()
    settings = {
        "output_dir": output_dir,
        "job": job,
        "upload_to": saving.upload_to,
        "keep_last": saving.upload_keep_last,
        "keep_every": saving.keep_every,
        "resume_from": given,
    }
    command, told = (sys.executable, "-E", "-P", str(MIRRORING)), json.dumps(settings)
    uploading = () if saving.upload_to is None else (*command, "upload", told)
    return (*command, "fetch", told), uploading


def on_disk(spec: JobSpec) -> JobSpec:
    """Return a copy of `spec` for the ranks, without a path in an object store. A `resume_from` in
    a store becomes the path on the disk to which it is downloaded. If it is one of the job's own
    checkpoints, it becomes None.
    """
    if not in_store(spec.resume_from):
        return spec
    place = spec.checkpoint.upload_to
    if place is not None and lies_in(spec.resume_from, place):
        return replace(spec, resume_from=None)  # among its own checkpoints
    return replace(spec, resume_from=str(Path(spec.output_dir or "") / FETCHED))


def rank_environment(
    spec: JobSpec,
    attempt: AttemptRow,
    cache: DataCacheConfig | None = None,
    user: JobUser | None = None,
    threads: int | None = None,
) -> dict[str, str]:
    """Return the environment variables that are the same for all ranks of the attempt.

    `threads` is the number of threads of a rank; None: an equal part of all processors.
    """
    run_dir = Path(attempt.run_dir)
    threads = threads or max(1, len(os.sched_getaffinity(0)) // spec.world_size)
    defaults = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if spec.engine != SCRIPT:
        defaults |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if spec.device == "cpu" and spec.rendezvous.nodes == 1:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {
        **defaults,
        **job_environment(spec, user),
        **(_cache_environment(run_dir, cache, user) if cache and spec.engine != SCRIPT else {}),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(attempt.gpu_uuids),
        "ZEROTOOLS_NOTIFY": str(run_dir / NOTIFY),
        "ZEROTOOLS_RUN_DIR": str(run_dir),
        "ZEROTOOLS_TOKEN": attempt.token,
    }


def _cache_environment(
    run_dir: Path, cache: DataCacheConfig, user: JobUser | None
) -> dict[str, str]:
    return {
        "ZEROTOOLS_DATA_CACHE": str(cache_directory(run_dir, cache, user)),
        "ZEROTOOLS_DATA_CACHE_BYTES": str(cache.bytes),
    }


def cache_directory(run_dir: Path, cache: DataCacheConfig, user: JobUser | None) -> Path:
    """Return the cache directory of `user` (None: the daemon's user), private to this user."""
    directory = Path(cache.directory or run_dir.parents[2] / DATA_CACHE)
    return directory if user is None else directory / f"uid-{user.account.uid}"


def make_plan(
    spec: JobSpec,
    job: JobRow,
    attempt: AttemptRow,
    settings: LaunchSettings,
    user: JobUser | None,
    bindings: RankBindings,
) -> Plan:
    config, run_dir = settings.config, Path(attempt.run_dir)
    own = spec.engine == SCRIPT
    return Plan(
        job_id=job.id,
        attempt=attempt.number,
        token=attempt.token,
        argv=command_of(spec, attempt.gpu_uuids) if own else settings.command(spec, run_dir),
        env=rank_environment(spec, attempt, config.data_cache, user, bindings.threads),
        cwd=spec.script.directory if own else str(run_dir),
        umask=settings.umask,
        world_size=spec.world_size,
        gpu_uuids=attempt.gpu_uuids,
        grace_seconds=config.stop.grace_seconds,
        straggler_seconds=config.stop.straggler_seconds,
        kill_seconds=config.stop.kill_seconds,
        cgroups=config.limits.cgroups,
        limits=attempt_limits(spec.limits, config.limits),
        wished_limits=declared_limits(spec, config.limits),
        log_limit_bytes=config.limits.log_bytes,
        closing=closing_command(spec, job.output_dir),
        stall={
            **limits_of(spec.stall, own_program=own),
            COMPLETE: config.stop.straggler_seconds,
        },
        bindings=bindings.ranks,
        meeting=_meeting_address(spec),
    )


def slurm_plan(plan: Plan, run_dir: Path) -> Plan:
    """Return the plan for a job under Slurm. One process on this machine watches the Slurm job."""
    return plan._replace(
        argv=(sys.executable, "-E", "-P", str(ATTENDING_ENTRY)),
        cwd=str(run_dir),
        world_size=1,
        own_program=True,
        launcher=False,
        closing=(),
        stall={},
        limits={},
        wished_limits={},
    )


def _meeting_address(spec: JobSpec) -> dict[str, Any]:
    """Return the address at which the ranks of several nodes meet, as a dict. It is empty for a
    job on one node.
    """
    rendezvous, place = spec.rendezvous, spec.rendezvous.host_and_port
    if rendezvous.nodes == 1 or place is None:
        return {}
    return {
        "host": place[0],
        "port": place[1],
        "nodes": rendezvous.nodes,
        "node_rank": rendezvous.node_rank,
    }


def plan_for_program(
    plan: Plan,
    spec: JobSpec,
    job: JobRow,
    reported_before: Sequence[str],
    importable: Path,
) -> Plan:
    """Return `plan` changed for a program of the user, which imports zerotools from the
    directory `importable`.

    `reported_before` are the checkpoints that the program has reported in earlier attempts.
    """
    run_dir = Path(plan.env["ZEROTOOLS_RUN_DIR"])
    paths = (plan.env.get("PYTHONPATH"), str(importable))
    env = {name: value for name, value in plan.env.items() if name not in _RANK_VARIABLES}
    env["PYTHONPATH"] = ":".join(path for path in paths if path)
    env["ZEROTOOLS_OUTPUT_DIR"] = job.output_dir
    if spec.script.evaluates is not None:
        env["ZEROTOOLS_MODEL"] = str(Path(job.output_dir) / MODEL)
    finder: tuple[str, ...] = ()
    if spec.script.checkpoint_dir or reported_before or spec.resume_from:
        finder = finder_command(run_dir / FINDER)
    launcher = spec.script.launcher != "plain"
    plan = plan._replace(env=env, own_program=True, launcher=launcher, finder=finder)
    plan = plan._replace(exporting=exporting_command(spec, job.output_dir))
    if (process := spec.script.process) is None:
        return plan
    argv = watching_command(process, plan.grace_seconds)
    return plan._replace(argv=argv, cwd=str(run_dir), watches=True)


def finder_settings(spec: JobSpec, earlier: EarlierCheckpoints, before: Path) -> dict[str, Any]:
    return {
        "checkpoint_dir": spec.script.checkpoint_dir,
        "before": str(before),
        "told": list(earlier.newest),
        "reported": list(earlier.by_program),
        "given": spec.resume_from,
    }
