"""Makes the run directory of an attempt: its files, and the commands and environment of its ranks.

For another user's job, the user owns the directory and cannot rename files of the daemon next to
it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import zerotools
from zerotools.io.files.mounts import MountPoint, mounts_of
from zerotools.io.stores.path_or_url import lies_in
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.check_store_urls import in_store
from zerotools.jobs.jobfile_tables.elastic import at_size
from zerotools.jobs.jobfile_tables.script import MODEL
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.jobs.jobfile_tables.stall import limits_of
from zerotools.runs import checkpoint_dirs
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.attempts.backends.choose_backend import CHILDREN, LaunchBackend
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.attempts.launcher_command import (
    command_of,
    finder_command,
    make_importable,
    watching_command,
)
from zerotoolsd.attempts.numa_binding import UNBOUND, RankBindings
from zerotoolsd.attempts.resource_limits import attempt_limits, declared_limits
from zerotoolsd.config.config_tables import DataCacheConfig
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, EXIT, FINDER, NOTIFY, Plan
from zerotoolsd.supervisor.durable_files import read_json, reserve_space, sync_directory, write_json
from zerotoolsd.supervisor.heartbeats.stall_limits import COMPLETE, END, REPORT
from zerotoolsd.supervisor.stop.stop_request_file import reserve_request
from zerotoolsd.users.account import Account
from zerotoolsd.users.open_as_user import let_through, make_owned, opened_run_directory, owner_of
from zerotoolsd.users.start_as_submitter import JobUser

SPEC = "spec.json"
SCRIPT = "script"
DATA_CACHE = "data-cache"
"""Name of the directory for tokenized data, inside the state directory."""
BEFORE = "checkpoints-before.json"
"""Name of a file in the job's directory, with the contents that `script.checkpoint_dir` had
before the first attempt.

For a job of another user it is in the directory OWN.
"""
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

    The ranks have the `umask` of the daemon and connect to its `socket`. `backend` starts the
    supervisors.
    """

    config: Config
    command: RankCommand
    umask: int
    socket: Path | None = None
    backend: LaunchBackend = CHILDREN


@dataclass(frozen=True, kw_only=True)
class EarlierCheckpoints:
    """The paths of checkpoints that earlier attempts of the job have reported, the newest
    first.

    `newest` has the last checkpoint of each attempt. `by_program` has the checkpoints that
    the program of the job has reported itself.
    """

    newest: Sequence[str] = ()
    by_program: Sequence[str] = ()


_RANK_VARIABLES = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"),
)
"""Environment variables that are removed from the environment of every job."""


def trainer_command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
    """Return the command of the built-in trainer, run by the Python interpreter of the job."""
    python = spec.python or sys.executable
    return (python, "-P", str(TRAINER_ENTRY), "--run-dir", str(run_dir))


def closing_command(spec: JobSpec, output_dir: str) -> tuple[str, ...]:
    """Return the command that runs after a finished training, with the Python interpreter of
    the daemon.

    It is empty if the job needs no such command, or if another node (node 0) runs it.
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
    """Return the name under which the job is known in an object store.

    It contains neither the number of the job nor the machine, because under Slurm both
    change at a restart.
    """
    return f"{job.uid}:{job.created!r}:{job.output_dir}"


def mirroring_commands(
    spec: JobSpec, output_dir: str, job: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two commands: one downloads a checkpoint before the ranks start, and one uploads
    saved checkpoints.

    The interpreter of the daemon runs them, on node 0. `job` is the name of the job in the
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
    """Return a copy of `spec` for the ranks, in which paths in an object store are replaced by
    paths on the disk.
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
        "ZEROTOOLS_DATA_CACHE": str(_cache_directory(run_dir, cache, user)),
        "ZEROTOOLS_DATA_CACHE_BYTES": str(cache.bytes),
    }


def _cache_directory(run_dir: Path, cache: DataCacheConfig, user: JobUser | None) -> Path:
    """Return the directory for cached data of the daemon's user, or of `user`; only this user
    can read it.
    """
    directory = Path(cache.directory or run_dir.parents[2] / DATA_CACHE)
    return directory if user is None else directory / f"uid-{user.account.uid}"


def prepare_run_directory(
    job: JobRow,
    attempt: AttemptRow,
    *,
    settings: LaunchSettings,
    earlier: EarlierCheckpoints = EarlierCheckpoints(),
    gpu_locks: Mapping[str, Any] = MappingProxyType({}),
    user: JobUser | None = None,
    mounted: Sequence[MountPoint] = (),
    bindings: RankBindings = UNBOUND,
) -> Plan:
    """Create the run directory of an attempt with the files that its processes need. Return the
    supervisor's plan.

    This may be repeated. Raises OSError.

    `gpu_locks` is the data with which the supervisor locks its GPUs. `user` is the user of
    the job; None: the user of the daemon. `mounted` are the current mounts. `bindings` are
    the processor and memory bindings of the ranks.
    """
    config = settings.config
    run_dir = Path(attempt.run_dir)
    importable = _make_places(run_dir, job, config, user)
    sync_directory(run_dir.parent)
    # Not attempt.resumed_from: the ranks compare digests, and pass over what fails.
    spec = replace(job.spec, output_dir=job.output_dir)
    if spec.stall.action == END and not config.watch.end_stalled:
        spec = replace(spec, stall=replace(spec.stall, action=REPORT))
    fetching, uploading = mirroring_commands(spec, job.output_dir, known_as(job))
    if spec.backend != SLURM:
        spec = on_disk(spec)
    sized = at_size(spec, attempt.world_size or spec.world_size)
    plan = _plan(sized, job, attempt, settings, user, bindings)
    thinning = thinning_command(spec, job.output_dir, job.id, settings.socket)
    if spec.backend == SLURM:
        plan, thinning, fetching, uploading = _slurm_plan(plan, run_dir), (), (), ()
    mounts = tuple(sorted(mounts_of(spec, mounted)))
    plan = replace(plan, thinning=thinning, fetching=fetching, uploading=uploading)
    plan = replace(plan, gpu_locks=gpu_locks, mounts=mounts, gpu_part=attempt.gpu_part)
    if user is not None:
        write_attempt_note(run_dir, attempt, job_to_dict(spec))
    with opened_run_directory(run_dir) as base:
        if spec.engine == SCRIPT and spec.backend != SLURM:
            before = run_dir.parent / (BEFORE if user is None else f"{OWN}/{BEFORE}")
            plan = _for_program(plan, spec, job, earlier.newest, importable)
            if plan.finder:
                write_json(base / FINDER, _finder_settings(spec, earlier, before))
        elif saved := newest_saved(earlier.newest, Path(job.output_dir)):
            plan = replace(plan, env={**plan.env, "ZEROTOOLS_SAVED_STEP": str(saved)})
        write_json(base / SPEC, job_to_dict(spec))
        write_json(base / ATTEMPT, plan.to_json())
        reserve_space(base / EXIT, plan.processes)
        reserve_request(base)
    return plan


def _make_places(run_dir: Path, job: JobRow, config: Config, user: JobUser | None) -> Path:
    """Create the directories of an attempt. Return the directory that is put into the
    PYTHONPATH of the program.
    """
    package, is_program = Path(str(zerotools.__file__)).parent, job.spec.engine == SCRIPT
    if user is None:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return make_importable(run_dir, package) if is_program else run_dir
    output = Path(job.output_dir)
    names = [run_dir.name, OWN, *([output.name] if output.parent == run_dir.parent else ())]
    make_user_directories(run_dir.parent, names, user.account)
    if is_program:
        # Not in the user's own directory, which may hold anything under that name.
        importable = make_importable(run_dir.parents[2], package)
        let_through(importable, JOB_MODE)
        return importable
    if config.data_cache.bytes:
        cache, is_own = config.data_cache, config.data_cache.directory is None
        directory = _cache_directory(run_dir, cache, user)
        make_user_cache(directory, user.account, is_own=is_own)
    return run_dir


def newest_saved(reported: Sequence[str], output_dir: Path) -> int:
    """Return the newest step among those checkpoints in `reported` that the built-in trainer
    wrote into `output_dir`; 0 if none exists.
    """
    own = (path for path in map(Path, reported) if path.parent == output_dir)
    return max((checkpoint_dirs.step_of(path.name) or 0 for path in own), default=0)


def _plan(
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


def _slurm_plan(plan: Plan, run_dir: Path) -> Plan:
    """Return the plan for a job under Slurm. Its only process on this machine watches the Slurm
    job.
    """
    return replace(
        plan,
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
    rendezvous, place = spec.rendezvous, spec.rendezvous.place
    if rendezvous.nodes == 1 or place is None:
        return {}
    return {
        "host": place[0],
        "port": place[1],
        "nodes": rendezvous.nodes,
        "node_rank": rendezvous.node_rank,
    }


def _for_program(
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
    plan = replace(plan, env=env, own_program=True, launcher=launcher, finder=finder)
    plan = replace(plan, exporting=exporting_command(spec, job.output_dir))
    if (process := spec.script.process) is None:
        return plan
    argv = watching_command(process, plan.grace_seconds)
    return replace(plan, argv=argv, cwd=str(run_dir), watches=True)


def _finder_settings(spec: JobSpec, earlier: EarlierCheckpoints, before: Path) -> dict[str, Any]:
    return {
        "checkpoint_dir": spec.script.checkpoint_dir,
        "before": str(before),
        "told": list(earlier.newest),
        "reported": list(earlier.by_program),
        "given": spec.resume_from,
    }


OWN = "own"
"""Name of the directory for files that are kept between attempts, inside the job directory of
another user.
"""
JOBS_MODE, JOB_MODE = 0o711, 0o755
BEGUN = "begun"


def make_user_directories(own: Path, names: Iterable[str], account: Account) -> None:
    """Create the directories `names` in the job directory `own`; they belong to the user
    `account`. Raises OSError.
    """
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        make_owned(own / name, account)
    let_through(own, JOB_MODE)
    let_through(own.parent, JOBS_MODE)


def make_user_cache(directory: Path, account: Account, *, is_own: bool) -> None:
    """Create the cache directory of one user inside of a directory that all users share. Raises
    OSError.

    `is_own` is True if the shared directory belongs to the daemon, so that its mode is
    always set. If the administrator has configured the shared directory, its mode is set
    only when it is created here.
    """
    shared = directory.parent
    is_new = not shared.exists()
    shared.mkdir(parents=True, exist_ok=True, mode=0o700)
    if is_new or is_own:
        let_through(shared, JOBS_MODE)
    make_owned(directory, account)


def write_attempt_note(run_dir: Path, attempt: AttemptRow, spec: Mapping[str, Any]) -> None:
    """Write a file next to the run directory that says which attempt is about to start in it.
    Raises OSError.
    """
    known = {
        "job_id": attempt.job_id,
        "token": attempt.token,
        "gpu_uuids": list(attempt.gpu_uuids),
        "spec": dict(spec),
    }
    write_json(_note_path(run_dir), known)


def read_attempt_note(run_dir: Path) -> dict[str, Any] | None:
    """Return the data that `write_attempt_note` wrote; None for jobs of the daemon's user,
    which need no such file.

    Raises OSError and ValueError if the file is missing or cannot be read.
    """
    if owner_of(run_dir) is None:
        return None
    found = read_json(_note_path(run_dir))
    if found is None:
        raise ValueError(
            f"{_note_path(run_dir).name} is missing next to the run directory, which belongs to "
            "another user"
        )
    return found


def attempt_note_time(run_dir: Path) -> float:
    """Return the time at which `write_attempt_note` wrote its file, in seconds since the epoch.
    Raises OSError.
    """
    return _note_path(run_dir).stat().st_mtime


def _note_path(run_dir: Path) -> Path:
    return run_dir.with_name(f"{BEGUN}-{run_dir.name.removeprefix('attempt-')}.json")
