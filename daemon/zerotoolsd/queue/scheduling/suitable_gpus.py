"""Decides which GPUs a job can use, and says why the job cannot use other GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from zerotools.core.counts_and_sizes import count_text
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.foreign_gpu_memory import drawn_bytes, foreign_bytes
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import GIB, DeclaredMemory, shared_free_bytes
from zerotoolsd.queue.scheduling.resource_requests import CapabilityNeed, ResourceNeed

MOST_LISTED = 8
NameJob = Callable[[int], str]
"""A function that returns the text that names a job in a message: (job number) -> text."""


def by_number(job_id: int) -> str:
    """Return text that names a job by its number, such as `job 7`."""
    return f"job {job_id}"


def merged_reasons(whys: Mapping[int, str]) -> str:
    """Return the reasons of several GPUs as text, with equal reasons merged: `GPUs 0-3: job 1;
    GPU 5: kept for job 7`.
    """
    of_why: dict[str, list[int]] = {}
    for index, why in whys.items():
        of_why.setdefault(why, []).append(index)
    said = [f"{_gpus(indexes)}: {why}" for why, indexes in of_why.items()]
    more = f"; and {len(said) - MOST_LISTED} more" if len(said) > MOST_LISTED else ""
    return "; ".join(said[:MOST_LISTED]) + more


def _gpus(indexes: Sequence[int]) -> str:
    """Return GPU indices as text: `GPU 5`, or `GPUs 0-3, 6`."""
    listed = cpu_list(indexes).replace(",", ", ")
    return f"GPUs {listed}" if len(indexes) > 1 else f"GPU {listed}"


def why_unknown(snapshot: Snapshot | None, now: float, limits: LimitsConfig) -> str | None:
    """Return why the state of the GPUs is unknown or too old to be used; None if it is known."""
    if snapshot is None:
        return "the GPUs were not measured yet"
    if snapshot.gpus_error is not None:
        return snapshot.gpus_error
    age = now - snapshot.taken_at + (snapshot.gpus_age_seconds or 0.0)
    if age > limits.snapshot_age_seconds:
        return f"the GPUs were last measured {age:.0f} s ago"
    return None


def occupied_gpus(
    gpus: Sequence[Gpu],
    leases: Sequence[Lease],
    limits: LimitsConfig,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
    closed: Mapping[str, str] = MappingProxyType({}),
    named: NameJob = by_number,
) -> dict[int, str]:
    """Return the reasons why GPUs cannot be used, keyed by GPU index. A GPU without an entry is
    free.

    `elsewhere` has GPUs that belong to other daemons, and `closed` has GPUs that get no new jobs.
    Both map the UUID to a reason that begins with a verb, with the GPU as its subject. `named`
    returns the text that names a job. In messages, a reason in the result follows "GPU 0: ".
    """
    by_uuid: dict[str, list[Lease]] = {}
    for lease in leases:
        by_uuid.setdefault(lease.gpu_uuid, []).append(lease)
    found = {}
    for gpu in gpus:
        why = _why_occupied(gpu, by_uuid.get(gpu.uuid or "", ()), limits, elsewhere, closed, named)
        if why is not None:
            found[gpu.index] = why.removeprefix("is ")
    return found


def _why_occupied(
    gpu: Gpu,
    leases: Sequence[Lease],
    limits: LimitsConfig,
    elsewhere: Mapping[str, str],
    closed: Mapping[str, str],
    named: NameJob,
) -> str | None:
    if (never := _never(gpu, limits)) is not None:
        return never
    if gpu.error is not None or gpu.uuid is None or _is_unreadable(gpu):
        return f"cannot be relied on ({gpu.error or 'unreadable'})"
    for lease in leases:
        if lease.held_by is not None:
            return f"in use by {lease.held_by}, which {named(lease.job_id)} left behind"
    if gpu.uuid in closed:
        return closed[gpu.uuid]
    if leases:
        return ", ".join(map(named, sorted(lease.job_id for lease in leases)))
    if gpu.uuid in elsewhere:
        return elsewhere[gpu.uuid]
    if foreign_bytes(gpu) > limits.foreign_on(gpu):
        return _foreign(gpu, foreign_bytes(gpu), limits.foreign_on(gpu))
    return None


def _is_shut(gpu: Gpu, limits: LimitsConfig) -> bool:
    return gpu.unmeasured is not None and not limits.use_unmeasured_gpus


def _is_unreadable(gpu: Gpu) -> bool:
    return gpu.memory_used_bytes is None and gpu.unmeasured is None


def _never(gpu: Gpu, limits: LimitsConfig) -> str | None:
    """Return why no job can ever start on this GPU; None if jobs can."""
    if gpu.excluded:
        return "excluded by gpus.exclude of the daemon's configuration"
    if gpu.mig_instances is not None:
        return gpu.error or "it is divided into MIG instances, on which zerotools does not train"
    if _is_shut(gpu, limits):
        return (
            f"{gpu.unmeasured}, so nothing shows whether others use it; to use it anyway, "
            "set limits.use_unmeasured_gpus = true in the daemon's configuration"
        )
    return None


def _incapable(gpu: Gpu, need: CapabilityNeed | None) -> str | None:
    """Return the reason why the compute capability of the GPU is too low for the job; None if
    it is high enough or unknown.
    """
    found = gpu.compute_capability
    if need is None or found is None or found >= need.least:
        return None
    return (
        f"{gpu.name or 'a GPU'} has compute capability {_dotted(found)}, but {need.what} needs "
        f"{_dotted(need.least)}"
    )


def too_small(gpu: Gpu, need: ResourceNeed, memory: DeclaredMemory) -> str | None:
    """Return the reason why the GPU has less memory than the job needs on each GPU; None if it
    has enough or its memory is unknown.
    """
    if need.gpu_bytes is None or gpu.memory_total_bytes is None:
        return None
    empty = replace(gpu, memory_used_bytes=0)
    if (shared_free_bytes(empty, (), memory) or 0) >= memory.share(need.gpu_bytes):
        return None
    return (
        f"{gpu.memory_total_bytes / GIB:.1f} GiB of memory, but memory.per_gpu is "
        f"{need.gpu_bytes / GIB:.1f} GiB plus {memory.context / GIB:.1f} GiB for the CUDA context"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _foreign(gpu: Gpu, used: int, limit: int) -> str:
    total = f" of {gpu.memory_total_bytes / GIB:.1f}" if gpu.memory_total_bytes else ""
    computing = [process.pid for process in gpu.processes if not process.graphics]
    pids = ", ".join(map(str, computing[:MOST_LISTED]))
    whom = f"pid {pids}, not a job of this daemon" if pids else "processes of no job"
    return (
        f"{used / GIB:.1f}{total} GiB in use by {whom} (allowed: limits.foreign_memory_bytes = "
        f"{limit / GIB:.1f} GiB)"
    )


def usable_gpus(need: ResourceNeed, gpus: Sequence[Gpu]) -> tuple[list[Gpu], str | None]:
    """Return the GPUs that the job may use, and an error message if the job names a GPU that does
    not exist.

    GPUs that lack the compute capability or the expected memory are left out, if there are enough
    other GPUs.
    """
    wanted, missing = _named(need, gpus)
    if not isinstance(need.gpus, tuple):
        wanted = [gpu for gpu in wanted if not gpu.excluded]
    able = [gpu for gpu in wanted if _incapable(gpu, need.capability) is None]
    large = [gpu for gpu in able if _is_large(gpu, need)]
    able = large if len(large) >= need.world_size else able
    # Otherwise the job was accepted before this check existed, and continues as before.
    return (able if len(able) >= need.world_size else wanted), missing


def _is_large(gpu: Gpu, need: ResourceNeed) -> bool:
    whole = gpu.memory_total_bytes
    return whole is None or whole - drawn_bytes(gpu) >= need.least_gpu_bytes


def _named(need: ResourceNeed, gpus: Sequence[Gpu]) -> tuple[list[Gpu], str | None]:
    """Return the GPUs that the job names, in the order of the job, and an error message if one of
    them does not exist.
    """
    if not isinstance(need.gpus, tuple):
        return list(gpus), None
    chosen = []
    for name in need.gpus:
        found = [gpu for gpu in gpus if name in (gpu.index, gpu.uuid)]
        if not found and (whole := _divided(name, gpus)) is not None:
            return [], (
                f"needs GPU {name}: that is a MIG instance of GPU {whole.index}, but zerotools "
                "trains only on whole GPUs"
            )
        if not found:
            return [], f"needs GPU {name}, which does not exist; {_inventory(gpus)}"
        chosen += found
    if len({gpu.index for gpu in chosen}) < len(chosen):
        return [], "names the same GPU by its index and by its UUID; leave one of them out"
    return chosen, None


def _divided(name: int | str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU that contains the MIG instance `name`; None if there is no such GPU."""
    for gpu in gpus:
        for instance in gpu.mig_instances or ():
            if str(name).startswith("MIG-") and instance.startswith(str(name)):
                return gpu
    return None


def _inventory(gpus: Sequence[Gpu]) -> str:
    names = ", ".join(str(gpu.index) for gpu in gpus)
    which = f"GPUs {names}" if len(gpus) > 1 else f"only GPU {names}"
    return f"this machine has {which}" if gpus else "this machine has no GPU"


def shortage_text(need: int, wanted: Sequence[Gpu], taken: Mapping[int, str]) -> str:
    """Return a sentence that says that fewer than `need` of the GPUs `wanted` are free, and why.

    `taken` has the reasons why GPUs are not free, keyed by index.
    """
    whys = {gpu.index: taken[gpu.index] for gpu in wanted if gpu.index in taken}
    head = f"needs {count_text(need, 'GPU')}: {len(wanted) - len(whys)} of {len(wanted)} free"
    return f"{head}: {merged_reasons(whys)}" if whys else head


def why_impossible(
    need: ResourceNeed,
    snapshot: Snapshot | None,
    limits: LimitsConfig,
    memory: DeclaredMemory | None = None,
) -> str | None:
    """Return why this machine can never give the job its resources; None if it can."""
    size, memory = need.world_size, memory or DeclaredMemory()
    if memory.host_total is not None and need.host_bytes > memory.host_total:
        return (
            f"memory.host is {need.host_bytes / GIB:.1f} GiB, but all jobs together may declare "
            f"only {memory.host_total / GIB:.1f} GiB (limits.host_memory of this daemon); "
            "declare less, or set limits.host_memory and restart the daemon"
        )
    if need.gpus is None:
        if size <= limits.cpu_ranks:
            return None
        return (
            f"ranks = {size}: limits.cpu_ranks of this daemon is {limits.cpu_ranks} (its cores, "
            "unless its configuration sets another number); ask for fewer ranks, or set "
            "limits.cpu_ranks and restart the daemon"
        )
    if snapshot is None:
        return None
    if snapshot.gpus_error is not None and not snapshot.gpus:
        return (
            f"gpus: the job needs {count_text(size, 'GPU')}, but this machine shows none: "
            f'{snapshot.gpus_error}; with device = "cpu" it runs on the CPU'
        )
    wanted, missing = _named(need, snapshot.gpus)
    if missing is not None:
        return f"gpus: the job {missing}"
    if size > len(snapshot.gpus):
        most = len(snapshot.gpus)
        do = f"set gpus to at most {most}" if most else 'set device = "cpu"'
        return f"gpus = {size}: {_inventory(snapshot.gpus)}; {do}"
    never = {gpu.index: said for gpu in wanted if (said := _never(gpu, limits)) is not None}
    others = [gpu for gpu in wanted if gpu.index not in never]
    weak = {gpu.index: why for gpu in others if (why := _incapable(gpu, need.capability))}
    never |= weak
    for gpu in others:
        if gpu.index not in never and (why := too_small(gpu, need, memory)) is not None:
            never[gpu.index] = why
    if size <= len(wanted) - len(never):
        return None
    advice = f"; {need.capability.instead}" if weak and need.capability else ""
    return (
        f"gpus: the job needs {count_text(size, 'GPU')}, but can use only "
        f"{len(wanted) - len(never)} of "
        f"{len(wanted)}: {merged_reasons(never)}{advice}"
    )
