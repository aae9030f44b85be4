"""Makes the run directory of an attempt, with its files.

For a job of another user, this user owns the directory. Files of the daemon lie next to the
directory, where the user cannot rename them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import zerotools
from zerotools.io.files.mounts import MountPoint, mounts_of
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size
from zerotools.jobs.jobfile_tables.spec import SLURM
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts.choose_numa_binding import UNBOUND, RankBindings
from zerotoolsd.attempts.launcher_command import (
    make_importable,
)
from zerotoolsd.attempts.make_attempt_plan import (
    NOTHING_EARLIER,
    SCRIPT,
    EarlierCheckpoints,
    LaunchSettings,
    cache_directory,
    finder_settings,
    known_as,
    make_plan,
    mirroring_commands,
    on_disk,
    plan_for_program,
    slurm_plan,
    thinning_command,
)
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, EXIT, FINDER, OWN, Plan
from zerotoolsd.supervisor.durable_files import read_json, reserve_space, sync_directory, write_json
from zerotoolsd.supervisor.heartbeats.stall_limits import END, REPORT
from zerotoolsd.supervisor.stop.stop_request_file import reserve_request
from zerotoolsd.users.account import Account
from zerotoolsd.users.open_as_user import let_through, make_owned, opened_run_directory, owner_of
from zerotoolsd.users.start_as_submitter import JobUser

SPEC = "spec.json"
BEFORE = "checkpoints-before.json"
"""Name of a file in the job's directory, with the contents that `script.checkpoint_dir` had
before the first attempt.

For a job of another user it is in the directory OWN.
"""


def prepare_run_directory(
    job: JobRow,
    attempt: AttemptRow,
    *,
    settings: LaunchSettings,
    earlier: EarlierCheckpoints = NOTHING_EARLIER,
    gpu_locks: Mapping[str, Any] = MappingProxyType({}),
    user: JobUser | None = None,
    mounted: Sequence[MountPoint] = (),
    bindings: RankBindings = UNBOUND,
) -> Plan:
    """Create the run directory of an attempt, with the files that its processes need. Return the
    supervisor's plan.

    A second call for the same attempt is allowed. Raises OSError.

    `gpu_locks` is the data with which the supervisor locks its GPUs. `user` is the user of the job;
    None: the user of the daemon. `mounted` are the current mounts. `bindings` are the processor and
    memory bindings of the ranks.
    """
    config = settings.config
    run_dir = Path(attempt.run_dir)
    importable = _create_directories(run_dir, job, config, user)
    sync_directory(run_dir.parent)
    # Not attempt.resumed_from: the ranks compare digests, and skip a checkpoint that differs.
    spec = replace(job.spec, output_dir=job.output_dir)
    if spec.stall.action == END and not config.watch.end_stalled:
        spec = replace(spec, stall=replace(spec.stall, action=REPORT))
    fetching, uploading = mirroring_commands(spec, job.output_dir, known_as(job))
    if spec.backend != SLURM:
        spec = on_disk(spec)
    sized = at_size(spec, attempt.world_size or spec.world_size)
    plan = make_plan(sized, job, attempt, settings, user, bindings)
    thinning = thinning_command(spec, job.output_dir, job.id, settings.socket)
    if spec.backend == SLURM:
        plan, thinning, fetching, uploading = slurm_plan(plan, run_dir), (), (), ()
    mounts = tuple(sorted(mounts_of(spec, mounted)))
    plan = plan._replace(thinning=thinning, fetching=fetching, uploading=uploading)
    plan = plan._replace(gpu_locks=gpu_locks, mounts=mounts, gpu_part=attempt.gpu_part)
    if user is not None:
        write_attempt_note(run_dir, attempt, job_to_dict(spec))
    with opened_run_directory(run_dir) as base:
        if spec.engine == SCRIPT and spec.backend != SLURM:
            before = run_dir.parent / (BEFORE if user is None else f"{OWN}/{BEFORE}")
            plan = plan_for_program(plan, spec, job, earlier.newest, importable)
            if plan.finder:
                write_json(base / FINDER, finder_settings(spec, earlier, before))
        elif saved := newest_saved(earlier.newest, Path(job.output_dir)):
            plan = plan._replace(env={**plan.env, "ZEROTOOLS_SAVED_STEP": str(saved)})
        write_json(base / SPEC, job_to_dict(spec))
        write_json(base / ATTEMPT, plan.to_json())
        reserve_space(base / EXIT, plan.processes)
        reserve_request(base)
    return plan


def _create_directories(run_dir: Path, job: JobRow, config: Config, user: JobUser | None) -> Path:
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
        directory = cache_directory(run_dir, cache, user)
        make_user_cache(directory, user.account, is_own=is_own)
    return run_dir


def newest_saved(reported: Sequence[str], output_dir: Path) -> int:
    """Return the newest step among those checkpoints in `reported` that the built-in trainer wrote
    into `output_dir`; 0 if there is no such checkpoint.
    """
    own = (path for path in map(Path, reported) if path.parent == output_dir)
    return max((find_job_checkpoints.step_of(path.name) or 0 for path in own), default=0)


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
    """Write a file next to the run directory, with the attempt that will start. Raises OSError."""
    known = {
        "job_id": attempt.job_id,
        "token": attempt.token,
        "gpu_uuids": list(attempt.gpu_uuids),
        "spec": dict(spec),
    }
    write_json(_note_path(run_dir), known)


def read_attempt_note(run_dir: Path) -> dict[str, Any] | None:
    """Return the data that `write_attempt_note` wrote; None for jobs of the daemon's user, which
    have no such file.

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
