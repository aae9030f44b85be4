"""The resource limits of a job, from its `[limits]` and from the configuration of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.jobfile_tables.limits import SIZES, LimitsSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.supervisor import attempt_cgroup
from zerotoolsd.supervisor.attempt_cgroup import (
    MEMORY,
    PROCESSES,
    Delegation,
    NotDelegated,
    controllers_of,
)


def attempt_limits(spec: LimitsSpec, config: LimitsConfig) -> dict[str, int]:
    """Return the limits of a job, which its supervisor sets: name -> number (memory in bytes)."""
    found: dict[str, int] = {}
    for name in ("memory", "memory_high", "processes", "io_weight", "io_read", "io_write"):
        value = getattr(spec, name)
        if value is not None:
            found[name] = bytes_of(value) if name in SIZES else int(value)
    if config.job_memory is not None:
        found.setdefault(MEMORY, bytes_of(config.job_memory))
    if config.job_processes is not None:
        found.setdefault(PROCESSES, config.job_processes)
    return found


def declared_limits(spec: JobSpec, config: LimitsConfig) -> dict[str, int]:
    """Return the limits that follow from the host memory that the job declares; empty if the job
    sets a memory limit itself.
    """
    if spec.memory.host is None or spec.limits.memory is not None:
        return {}
    most = spec.memory.host_bytes if config.job_memory is None else bytes_of(config.job_memory)
    return {MEMORY: min(spec.memory.host_bytes, most)}


def why_refused(
    spec: LimitsSpec,
    config: LimitsConfig,
    way: LaunchBackend,
    find: Callable[[], Delegation] = attempt_cgroup.find_delegation,
    mount: Callable[[], Path] = attempt_cgroup.mounted_hierarchy,
) -> str | None:
    """Return the reason why this daemon cannot run a job with these limits; None if it can.

    `way` says how the daemon starts supervisors.
    """
    wanted = attempt_limits(spec, config)
    if not wanted:
        return None
    most = {MEMORY: config.job_memory, PROCESSES: config.job_processes}
    for name, value in most.items():
        own = getattr(spec, name)
        if value is not None and own is not None and bytes_of(own) > bytes_of(value):
            return (
                f"limits.{name} = {format_value(own)}: the daemon allows a job at most "
                f"limits.job_{name} = {format_value(value)}"
            )
    try:
        _refuse_unlimited(wanted, way, find, mount)
    except NotDelegated as error:
        given = [name for name in wanted if getattr(spec, name) is not None]
        own_names = ", ".join(
            f"limits.{name} = {format_value(getattr(spec, name))}" for name in given
        )
        its_names = ", ".join(f"limits.job_{name}" for name in wanted if name not in given)
        what = own_names or f"{its_names} of the daemon's configuration"
        do = "from the job file" if own_names else "from the configuration"
        return (
            f"{what}: cannot be enforced here, because {error}; start the daemon as a systemd "
            f"unit with Delegate=yes (zerotools doctor shows details), or remove the limit {do}"
        )
    return None


def _refuse_unlimited(
    wanted: dict[str, int],
    way: LaunchBackend,
    find: Callable[[], Delegation],
    mount: Callable[[], Path],
) -> None:
    """Raise NotDelegated if the limits `wanted` cannot be set."""
    controllers = controllers_of(wanted)
    if way.program is None:
        find().refuse_unlimited(controllers)
        return
    # Each supervisor has its own delegated unit, so only the machine's abilities are known in
    # advance.
    lacking = controllers - set(attempt_cgroup.available_controllers(mount()))
    if lacking:
        named = " and no ".join(sorted(lacking))
        raise NotDelegated(f"the control groups of this machine have no {named} controller")
