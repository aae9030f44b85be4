"""Check the GPUs, the locks that let several users share them, and their memory nodes (NUMA)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotools.jobs.doctor.finding import DoctorFinding, ok, problem, warning
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.foreign_gpu_memory import USUAL_WORDS, foreign_bytes, usual_foreign_bytes
from zerotools.sensors.numa import (
    NearGpu,
    NumaTopology,
    ReadTopology,
    memory_policy,
    near_gpus,
    read_topology,
)
from zerotools.sensors.snapshot import Gpu, Snapshot

HOT_CELSIUS = 90


DIRECTORY = Path("/run/zerotools/gpus")
"""The daemon's default directory for the locks of GPUs."""
WHAT = "memory nodes"
HOW_TO = "zerotools help numa"


def check_gpus(
    snapshot: Snapshot, ours: frozenset[str] = frozenset(), excluded: frozenset[str] = frozenset()
) -> Iterator[DoctorFinding]:
    """Check the GPUs in the snapshot of the machine.

    `ours` are the UUIDs of the GPUs that jobs of the daemon use. `excluded` are the UUIDs that the
    daemon's configuration excludes.
    """
    if snapshot.gpus_silent:
        yield problem(
            "NVML",
            str(snapshot.gpus_error),
            "jobs on GPUs wait until the driver answers, jobs on CPUs do not; check dmesg for "
            "NVRM and Xid, and check for processes in state D: the machine may need a restart",
        )
        return
    if snapshot.gpus_error is not None:
        yield warning(
            "NVML",
            snapshot.gpus_error.removeprefix("no NVML: "),
            'without NVML only device = "cpu" jobs start; on a machine with NVIDIA GPUs check '
            "nvidia-smi and dmesg",
        )
        return
    if not snapshot.gpus:
        yield warning("NVML", "the driver shows no GPU", "check nvidia-smi -L and dmesg")
        return
    yield ok("NVML", f"shows {len(snapshot.gpus)} GPU{'s' * (len(snapshot.gpus) > 1)}")
    for gpu in snapshot.gpus:
        if gpu.uuid in excluded:
            yield ok(f"GPU {gpu.index}", "not used: it is in gpus.exclude of zerotoolsd.toml")
        else:
            yield from _check_gpu(gpu, gpu.uuid in ours)


def _check_gpu(gpu: Gpu, is_ours: bool) -> Iterator[DoctorFinding]:
    what = f"GPU {gpu.index}"
    if gpu.mig_instances is not None:
        yield warning(
            what, str(gpu.error), f"nvidia-smi -i {gpu.index} -mig 0 makes it one GPU again"
        )
    elif gpu.error is not None:
        yield problem(
            what,
            f"cannot be relied on: {gpu.error}",
            "no job starts on it; check dmesg for Xid messages, then reset it or restart the "
            "machine",
        )
    elif gpu.unmeasured is not None:
        yield warning(
            what,
            gpu.unmeasured,
            "no job starts on it; if no other program uses it, set limits.use_unmeasured_gpus "
            "= true in zerotoolsd.toml",
        )
    elif not is_ours and foreign_bytes(gpu) > usual_foreign_bytes(gpu):
        yield _in_use(gpu, what)
    elif (gpu.temperature_celsius or 0) >= HOT_CELSIUS:
        yield warning(
            what,
            f"has {gpu.temperature_celsius} degrees",
            "the GPU slows down when it is hot; improve its cooling",
        )
    else:
        yield ok(what, f"{gpu.name or 'a GPU'}, {gpu.uuid}")


def _in_use(gpu: Gpu, what: str) -> DoctorFinding:
    used, limit = foreign_bytes(gpu) / 2**30, usual_foreign_bytes(gpu) / 2**30
    pids = ", ".join(str(process.pid) for process in gpu.processes if not process.graphics)
    whom = f"by pid {pids}" if pids else "by no visible process"
    do = "end these processes if they are yours"
    if not pids:
        do = "a killed process, or a process in another container, may hold this memory; "
        do += f"see fuser -v /dev/nvidia{gpu.index}"
    keys = (
        f"no job starts on the GPU while other programs hold more than {limit:.1f} GiB "
        f"({USUAL_WORDS}); limits.foreign_memory_bytes in zerotoolsd.toml sets another "
        "limit, and gpus.exclude keeps jobs off the GPU"
    )
    return warning(what, f"{used:.1f} GiB are in use {whom}", f"{do}; {keys}")


def check_gpu_choice(choice: Mapping[str, Any] | None) -> Iterator[DoctorFinding]:
    """Check the settings `gpus.exclude` and `gpus.prefer`.

    `choice` is the daemon's report on these settings; None if no daemon runs, or if it is too old
    for this report.
    """
    for entry in (choice or {}).get("unknown", ()):
        yield warning(
            "the configuration",
            f"{entry} matches no GPU of this machine",
            "see nvidia-smi -L; correct the entry in zerotoolsd.toml and restart the daemon",
        )


def check_fences(leases: Iterable[Mapping[str, Any]]) -> Iterator[DoctorFinding]:
    """Yield a finding for each GPU that the daemon keeps reserved for an ended job, because
    processes of the job still use the GPU.
    """
    for lease in leases:
        if lease.get("held_by") is not None:
            yield warning(
                f"GPU {lease.get('gpu_uuid')}",
                f"stays reserved for {lease['held_by']}, which job {lease.get('job_id')} left "
                "behind",
                "the GPU is free when the process ends; a process in state D or Z waits for a "
                "file system or a driver: check dmesg, mount and nvidia-smi; only its user and "
                "root can end it",
            )


def check_gpu_locks(
    reported: Mapping[str, Any] | None, directory: Path = DIRECTORY
) -> Iterator[DoctorFinding]:
    """Check the lock files of GPUs.

    `reported` is the daemon's report on the locks. Without a report (no daemon runs, or it is too
    old), the files in `directory` are checked.
    """
    what = "GPUs of several users"
    if reported is not None:
        place, why = str(reported.get("directory")), reported.get("trouble")
    else:
        place, why = str(directory), _why_not(directory)
    if why is None:
        yield ok(what, f"their daemons share them by locks in {place}")
        return
    yield warning(
        what,
        f"two daemons may give one GPU to two jobs: {why}; a daemon then sees a job of another "
        "daemon only by its GPU memory",
        f"as root: install -d -m 1777 {place or directory}, and for the next boot zerotoolsd "
        "--print-unit tmpfiles > /etc/tmpfiles.d/zerotools.conf (zerotools help share-gpus)",
    )


def _why_not(directory: Path) -> str | None:
    try:
        found = directory.lstat()
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        return f"{directory} is not a directory that belongs to root"
    mode = stat.S_IMODE(found.st_mode)
    return None if mode == 0o1777 else f"{directory} has mode {mode:04o}, but must have 1777"


def check_memory_nodes(
    gpus: Sequence[Gpu],
    reported: Mapping[str, Any] | None,
    read: ReadTopology = read_topology,
    policy: Callable[[], object] = memory_policy,
) -> Iterator[DoctorFinding]:
    """Check the memory nodes (NUMA) of the GPUs. For a machine with one node, yield no finding.

    `reported` is the daemon's report on the nodes of the machine, and on the nodes that the daemon
    may use. Without a report (no daemon runs, or it is too old), this process reads the nodes.
    """
    topology = _topology(reported) or read()
    if not topology.is_divided:
        return
    near = near_gpus(gpus, topology)
    yield ok(WHAT, "; ".join(_nodes(topology, gpus, near)))
    for gpu, found in zip(gpus, near, strict=True):
        if found.why is not None:
            yield warning(
                f"GPU {gpu.index}",
                f"its ranks are not bound to processors near it: {found.why}",
                "jobs on it copy data over the slower link between the memory nodes; give the "
                "daemon processors near the GPU (cpuset of the container, AllowedCPUs= of the "
                f"unit; {HOW_TO})",
            )
    yield from _policy(policy)


def _topology(tree: Mapping[str, Any] | None) -> NumaTopology | None:
    with suppress(ValueError):  # a newer daemon may say it in other words
        return None if tree is None else NumaTopology.from_json(tree)
    return None


def _nodes(topology: NumaTopology, gpus: Sequence[Gpu], near: Sequence[NearGpu]) -> Iterator[str]:
    for node in topology.nodes:
        beside = [gpu.index for gpu, at in zip(gpus, near, strict=True) if node.number in at.homes]
        parts = [f"{len(node.cpus & topology.allowed_cpus)} of {len(node.cpus)} processors"]
        parts += [f"{node.memory_bytes / 2**30:.0f} GiB"]
        parts += [f"GPU{'s' * (len(beside) > 1)} {cpu_list(beside)}"] if beside else []
        yield f"node {node.number} has {', '.join(parts)}"


def _policy(policy: Callable[[], object]) -> Iterator[DoctorFinding]:
    try:
        policy()
    except OSError as error:
        do = "memory is allocated on the rank's node as long as that node has free memory"
        if error.errno == errno.EPERM:
            do += "; in Docker, --cap-add SYS_NICE allows the choice"
        yield warning(
            WHAT,
            f"the daemon cannot choose the node of memory: {os.strerror(error.errno or 0)}",
            do,
        )
