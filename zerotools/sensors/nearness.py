"""The processors and the memory near each GPU, and the choice to bind a process to them.

A GPU is attached to one memory node. A process on the processors of another node reaches the GPU,
and the buffers that the GPU copies from, over the link between the two. So its process belongs on
the GPU's node, unless that leaves the process too little: a container may have 2 processors of that
node and 30 of the other; on a machine with many small nodes most may have no GPU. The rule:

    near enough    what is near, divided by the GPUs that it is near to, is half of what all
                   processors are, divided by all GPUs

If the node is not enough, all nodes of its socket are tried, and then no processor is near. The
result depends only on the machine, and not on running jobs: a job that starts does not move others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotools.sensors.snapshot import Gpu
from zerotools.sensors.topology import NumaTopology

_LEAST = 0.5
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class NearGpu:
    """The usable processors and memory near one GPU: `cpus` of the memory nodes `homes`, and those
    of these nodes, `memory`, that have memory. It is number `place` (from 0) of the `sharers` GPUs
    near the same processors. No processors: all are equally near, or `why` is the reason."""

    cpus: frozenset[int] = frozenset()
    homes: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    place: int = 0
    sharers: int = 1
    why: str | None = None


def near_gpus(gpus: Sequence[Gpu], topology: NumaTopology) -> tuple[NearGpu, ...]:
    """Return the nearness of each of `gpus`, which are all of the machine."""
    if not topology.is_divided:
        return tuple(NearGpu() for _ in gpus)
    reach = [_reach(gpu, topology) for gpu in gpus]
    return tuple(_near(at, gpus, reach, topology) for at in range(len(gpus)))


Reach = tuple[frozenset[int], ...]
"""The processors of a GPU's node, and those of its socket; empty: unknown."""


def _reach(gpu: Gpu, topology: NumaTopology) -> Reach:
    own = _affinity(gpu) & _online(topology)
    if not own:
        # NVML's memory node may be the GPU's own, which has no processors.
        own = next((n.cpus for n in topology.nodes if n.number == gpu.numa_node), own)
    if not own:
        return ()
    sockets = {node.socket for node in topology.homes_of(own)} - {None}
    return own, own.union(*(node.cpus for node in topology.nodes if node.socket in sockets))


def _near(
    at: int, gpus: Sequence[Gpu], reaches: Sequence[Reach], topology: NumaTopology
) -> NearGpu:
    allowed = topology.allowed_cpus
    if not reaches[at]:
        return NearGpu(why=_unknown(gpus[at]))
    for level, near in enumerate(reaches[at]):
        usable = near & allowed
        if usable == allowed:
            return NearGpu()
        others = [reach[level] & allowed if reach else None for reach in reaches]
        sharers = [index for index, other in enumerate(others) if other == usable]
        if usable and len(usable) / len(sharers) >= _LEAST * len(allowed) / len(gpus):
            return _found(usable, sharers.index(at), len(sharers), topology)
    return NearGpu(why=_too_few(gpus[at], reaches[at][0], allowed))


def _found(cpus: frozenset[int], place: int, sharers: int, topology: NumaTopology) -> NearGpu:
    homes = topology.homes_of(cpus)
    numbers = tuple(node.number for node in homes)
    return NearGpu(cpus, numbers, topology.memory_of(homes), place, sharers)


def _unknown(gpu: Gpu) -> str:
    affinity, missing = gpu.cpu_affinity, gpu.missing.get("cpu_affinity")
    if affinity is not None and _affinity(gpu):
        return f"none of the processors near GPU {gpu.index} ({_shown(_affinity(gpu))}) is online"
    told = f" ({missing})" if missing else ""
    return f"the driver does not report the processors near GPU {gpu.index}{told}"


def _too_few(gpu: Gpu, near: frozenset[int], allowed: frozenset[int]) -> str:
    usable, whose = near & allowed, f"the processors near GPU {gpu.index} ({_shown(near)})"
    if not usable:
        return f"none of {whose} may be used here, only {_shown(allowed)}"
    return f"{len(usable)} of {whose} may be used here, too few of the {len(allowed)} that may"


def _online(topology: NumaTopology) -> frozenset[int]:
    return frozenset[int]().union(*(node.cpus for node in topology.nodes))


def _affinity(gpu: Gpu) -> frozenset[int]:
    try:
        return numbers_in(gpu.cpu_affinity or "")
    except ValueError:
        return frozenset()


def _shown(cpus: frozenset[int]) -> str:
    """Return the list of processors, or their number if the list would be long."""
    listed = cpu_list(cpus)
    return listed if len(listed) <= _LONGEST else f"{len(cpus)} processors"
