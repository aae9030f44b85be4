"""Chooses the binding of each rank: the processors and the memory next to its GPU. Pure.

A rank gets all processors of its GPU's memory node, and shares them with the other ranks there. The
kernel moves ranks among these, and data workers, which inherit the binding, find idle ones. So no
job is restricted to a few processors while others of the node are idle. With `numa = "cores"` each
rank has separate cores, those of its GPU among all GPUs near the node, so that the jobs of two GPUs
never share one.

Ranks on CPUs have no GPU. They are spread over the nodes if each node gets as many: otherwise those
on the fuller node would have less than without any binding, and the others would wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zerotools.core.counts import counted
from zerotools.jobs.tables.spec import NUMA_CORES, NUMA_OFF, SLURM, JobSpec
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.numa import NumaTopology, near_gpus
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.attempts.numa.core_split import core_share
from zerotoolsd.supervisor.rank_binding import RankBinding

_UNEVEN = 2
"""A node is not used for as many ranks if it has so many times fewer processors than another."""


@dataclass(frozen=True)
class RankBindings:
    """The bindings of the started processes; empty: no choice. `threads` is the suitable number of
    threads of each rank, None: as without any binding. `said` is the sentence on all of this."""

    ranks: tuple[RankBinding, ...] = ()
    threads: int | None = None
    said: str | None = None


UNBOUND = RankBindings()


@dataclass(frozen=True)
class _Part:
    """The planned binding of one rank, and the memory nodes of these processors."""

    cpus: frozenset[int] = frozenset()
    homes: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    why: str | None = None


def bind_ranks(
    spec: JobSpec,
    world_size: int,
    gpu_uuids: Sequence[str],
    gpus: Sequence[Gpu],
    topology: NumaTopology,
) -> RankBindings:
    """Return the bindings of `world_size` ranks of an attempt on `gpu_uuids`, in rank order.

    `gpus` are all GPUs of the machine.
    """
    elsewhere = spec.script.process is not None or spec.backend == SLURM
    if spec.numa == NUMA_OFF or elsewhere or not topology.is_divided:
        return UNBOUND
    own_cores = spec.numa == NUMA_CORES
    if spec.device == "cpu":
        parts = _of_cpus(world_size, topology, own_cores=own_cores)
    else:
        parts = _of_gpus(gpu_uuids, gpus, topology, own_cores=own_cores)
    threads = _threads(parts, topology)
    if spec.script.launcher != "plain":
        parts = [_joined(parts, spec.script.launcher)]
    if not any(part.cpus or part.why for part in parts):
        return UNBOUND
    ranks = tuple(RankBinding(cpu_list(part.cpus), part.memory, part.why) for part in parts)
    is_bound = any(part.cpus for part in parts)
    return RankBindings(ranks, threads if is_bound else None, _sentence(parts))


def _of_gpus(
    gpu_uuids: Sequence[str], gpus: Sequence[Gpu], topology: NumaTopology, *, own_cores: bool
) -> list[_Part]:
    near = dict(zip((gpu.uuid for gpu in gpus), near_gpus(gpus, topology), strict=True))
    parts = []
    for uuid in gpu_uuids:
        found = near.get(uuid)
        if found is None:
            parts.append(_Part(why=f"NVML has not shown {uuid} yet"))
            continue
        cpus = found.cpus
        if own_cores and cpus:
            cpus = core_share(cpus, topology.cores, found.place, found.sharers)
        parts.append(_Part(cpus, found.homes, found.memory, found.why))
    return parts


def _of_cpus(world_size: int, topology: NumaTopology, *, own_cores: bool) -> list[_Part]:
    allowed = topology.allowed_cpus
    homes = topology.homes_of(allowed)
    if len(homes) < 2:
        return []
    why = _why_not_spread(world_size, [len(node.cpus & allowed) for node in homes])
    if why is not None:
        return [_Part(why=why)] * world_size
    of_node, parts = world_size // len(homes), []
    for node in homes:
        cpus, memory = node.cpus & allowed, topology.memory_of((node,))
        for place in range(of_node):
            own = core_share(cpus, topology.cores, place, of_node) if own_cores else cpus
            parts.append(_Part(own, (node.number,), memory))
    return parts


def _why_not_spread(world_size: int, sizes: Sequence[int]) -> str | None:
    ranks, nodes = counted(world_size, "rank"), len(sizes)
    if world_size % nodes:
        return f"{ranks} cannot be spread evenly over {nodes} memory nodes"
    if min(sizes) * _UNEVEN < max(sizes):
        return f"of {nodes} memory nodes {min(sizes)} to {max(sizes)} processors may be used"
    return None


def _joined(parts: Sequence[_Part], launcher: str) -> _Part:
    """Return the binding of the launcher process that starts all ranks."""
    homes = {part.homes for part in parts}
    if why := next((part.why for part in parts if part.why), None):
        return _Part(why=why)
    if len(homes) == 1:
        cpus = frozenset[int]().union(*(part.cpus for part in parts))
        return _Part(cpus, parts[0].homes, parts[0].memory)
    if not homes:
        return _Part()
    return _Part(why=f"{launcher} starts ranks that belong on several memory nodes")


def _threads(parts: Sequence[_Part], topology: NumaTopology) -> int | None:
    """Return the number of threads per rank with which all ranks together fit on the processors.

    It is the same for all of them, because their work is.
    """
    counts = []
    for part in parts:
        cpus = part.cpus or topology.allowed_cpus
        sharers = sum(1 for other in parts if other.cpus == part.cpus) if part.cpus else len(parts)
        counts.append(len(cpus) // sharers)
    return max(1, min(counts)) if counts else None


def _sentence(parts: Sequence[_Part]) -> str:
    if len(parts) == 1:
        return _where(parts[0])
    groups = [(where, list(group)) for where, group in groupby(enumerate(parts), _group)]
    if len(groups) == 1:
        return f"all ranks {_where(parts[0])}"
    return ", ".join(f"{_named(group[0][0], group[-1][0])} {where}" for where, group in groups)


def _group(numbered: tuple[int, _Part]) -> str:
    return _where(numbered[1])


def _named(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _where(part: _Part) -> str:
    if not part.cpus:
        return f"not bound: {part.why}" if part.why else "not bound"
    nodes = "memory node" if len(part.homes) == 1 else "memory nodes"
    memory = "" if part.memory else ", without memory that may be used"
    return f"on {nodes} {cpu_list(part.homes)} ({counted(len(part.cpus), 'processor')}{memory})"
