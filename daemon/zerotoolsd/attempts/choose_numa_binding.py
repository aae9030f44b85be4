"""Chooses processors and memory nodes (NUMA) for each rank, near the GPU of the rank.

A rank gets all processors of its GPU's memory node, and shares them with the other ranks on that
node. The kernel moves ranks among these processors. Data workers inherit the binding, and use any
idle processors of the node. So no job is restricted to a few processors while other processors of
the node are idle. With `numa = "cores"` each rank has separate cores: the cores of a node are
divided among all GPUs near it, so that two GPUs never share a core.

Ranks on CPUs have no GPU. They are spread over the nodes only if each node gets the same number of
ranks. Otherwise the ranks on the node with more ranks would have fewer processors than without any
binding, and the other ranks would wait for those ranks.

`bind_ranks` chooses, `RankBinder` reads the machine, and `shown_binding` describes the bindings
that were actually set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeGuard

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.jobfile_tables.spec import NUMA_CORES, NUMA_OFF, SLURM, JobSpec
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.numa import NumaTopology, ReadTopology, near_gpus, read_topology
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.supervisor.attempt_plan import RUN
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.set_numa_binding import RankBinding
from zerotoolsd.users.open_as_user import opened_run_directory

_UNEVEN = 2
"""Ranks are not spread over memory nodes if one node has more than this many times the
processors of another node.
"""


@dataclass(frozen=True)
class RankBindings:
    """The processor and memory bindings of the processes that the supervisor starts; empty if the
    processes are not bound.

    Attributes:
        threads: the number of threads of each rank; None: the same as without a binding.
        said: a sentence that describes the bindings.
    """

    ranks: tuple[RankBinding, ...] = ()
    threads: int | None = None
    said: str | None = None


UNBOUND = RankBindings()


@dataclass(frozen=True)
class _Part:
    """The planned binding of one rank: its processors, and the memory nodes of these processors."""

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
    """Return the bindings of `world_size` ranks that use the GPUs `gpu_uuids`, in the order of
    the ranks.

    `gpus` are all GPUs of the machine, and `topology` has its processors and memory nodes.
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
    ranks, nodes = count_text(world_size, "rank"), len(sizes)
    if world_size % nodes:
        return f"{ranks} cannot be spread evenly over {nodes} memory nodes"
    if min(sizes) * _UNEVEN < max(sizes):
        return f"the {nodes} memory nodes have from {min(sizes)} to {max(sizes)} usable processors"
    return None


def _joined(parts: Sequence[_Part], launcher: str) -> _Part:
    """Return the binding of a launcher that starts all ranks: the processors of all ranks together,
    if the ranks belong on one memory node.
    """
    homes = {part.homes for part in parts}
    if why := next((part.why for part in parts if part.why), None):
        return _Part(why=why)
    if len(homes) == 1:
        cpus = frozenset[int]().union(*(part.cpus for part in parts))
        return _Part(cpus, parts[0].homes, parts[0].memory)
    if not homes:
        return _Part()
    return _Part(why=f"{launcher} starts all ranks, but the ranks belong on different memory nodes")


def _threads(parts: Sequence[_Part], topology: NumaTopology) -> int | None:
    """Return the number of threads of each rank, chosen so that the threads of all ranks fit on
    their processors; None if `parts` is empty.

    All ranks get the same number, because they do the same amount of work.
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
    memory = "" if part.memory else "; memory there may not be used"
    return f"on {nodes} {cpu_list(part.homes)} ({count_text(len(part.cpus), 'processor')}{memory})"


def core_share(
    cpus: frozenset[int], cores: Iterable[frozenset[int]], place: int, sharers: int
) -> frozenset[int]:
    """Divide the processors `cpus` among `sharers` ranks, and return the processors of rank number
    `place` (from 0).

    Each rank gets whole cores, with all threads of a core. The cores of a rank are neighbours,
    because neighbours share a cache. If there are fewer cores than ranks, each rank gets all of
    `cpus`.
    """
    usable = sorted((core & cpus for core in cores if core & cpus), key=min)
    if len(usable) < sharers:
        return cpus
    begin, end = (len(usable) * at // sharers for at in (place, place + 1))
    return frozenset[int]().union(*usable[begin:end])


class RankBinder:
    """Chooses the bindings of ranks for the current state of the machine. `gpus` returns the
    GPUs that were seen last.

    The processors that may be used can change, so they are read again for each attempt.
    """

    def __init__(
        self, gpus: Callable[[], Sequence[Gpu]], topology: ReadTopology = read_topology
    ) -> None:
        self._gpus = gpus
        self.topology = topology

    def bindings_for(self, spec: JobSpec, attempt: AttemptRow) -> RankBindings:
        """Return the bindings for the ranks of `attempt`, an attempt of the job `spec`."""
        if spec.numa == NUMA_OFF:
            return UNBOUND
        size = attempt.world_size or spec.world_size
        topology = self.topology(cores=spec.numa == NUMA_CORES)
        return bind_ranks(spec, size, attempt.gpu_uuids, self._gpus(), topology)


_LIST = re.compile(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?){0,4000})?")
_MOST_NODES = 1024
_MOST_RANKS = 2**16
_LONGEST_WHY = 500

_Binding = tuple[str, tuple[int, ...], str | None]


def shown_binding(attempt: AttemptRow) -> tuple[dict[str, Any], ...] | None:
    """Return the bindings of an attempt for clients. Ranks with equal bindings are in one JSON
    object.

    Return None if no record of a binding exists. An object has `ranks`, `cpus` (in the kernel's
    list format), `memory_nodes`, and `why`, the reason why the binding is incomplete, or null.
    """
    record: Mapping[str, Any] = attempt.result or {}
    if attempt.state != ENDED:
        with suppress(OSError, ValueError), opened_run_directory(Path(attempt.run_dir)) as base:
            record = read_json(base / RUN, LARGEST_RECORD) or {}
    ranks, found = record.get("ranks"), dict[_Binding, list[int]]()
    for rank in ranks[:_MOST_RANKS] if isinstance(ranks, list) else ():
        if (told := _rank_binding(rank)) is not None:
            found.setdefault(told[1], []).append(told[0])
    return tuple(_line(binding, ranks) for binding, ranks in found.items()) or None


def _line(binding: _Binding, ranks: Sequence[int]) -> dict[str, Any]:
    cpus, nodes, why = binding
    return {"ranks": cpu_list(ranks), "cpus": cpus, "memory_nodes": list(nodes), "why": why}


def _rank_binding(tree: object) -> tuple[int, _Binding] | None:
    binding = tree.get("binding") if isinstance(tree, Mapping) else None
    if not isinstance(tree, Mapping) or not isinstance(binding, Mapping):
        return None
    rank, cpus, nodes = tree.get("rank"), binding.get("cpus"), binding.get("nodes")
    if type(rank) is not int or not 0 <= rank < _MOST_RANKS:
        return None
    if not isinstance(cpus, str) or not _LIST.fullmatch(cpus) or not _are_nodes(nodes):
        return None
    why = binding.get("why")
    said = one_line(str(why))[:_LONGEST_WHY] if why else None
    return rank, (cpus, tuple(nodes), said)


def _are_nodes(nodes: object) -> TypeGuard[list[int]]:
    if not isinstance(nodes, list) or len(nodes) > _MOST_NODES:
        return False
    return all(type(node) is int and 0 <= node < _MOST_NODES for node in nodes)
