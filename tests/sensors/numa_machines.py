"""Machines with several memory nodes, as values and as the files in which the kernel shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.fake_gpu_probe import fake_gpu
from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotools.sensors.numa import MemoryNode, NumaTopology
from zerotools.sensors.snapshot import Gpu

GIB = 2**30


def a_topology(
    *cpus: str,
    memory_gib: Sequence[int] | None = None,
    sockets: Sequence[int | None] | None = None,
    allowed: str | None = None,
    allowed_nodes: str | None = None,
    threads: int = 1,
) -> NumaTopology:
    """A machine whose node N has the processors `cpus[N]`. Of a core with two threads, the second
    is as far behind the first as the node's second half."""
    sizes = memory_gib or [256] * len(cpus)
    places = sockets or list(range(len(cpus)))
    nodes = tuple(
        MemoryNode(number, numbers_in(listed), sizes[number] * GIB, places[number])
        for number, listed in enumerate(cpus)
    )
    online = frozenset[int]().union(*(node.cpus for node in nodes))
    return NumaTopology(
        nodes,
        online if allowed is None else numbers_in(allowed),
        frozenset(range(len(cpus))) if allowed_nodes is None else numbers_in(allowed_nodes),
        tuple(core for node in nodes for core in _cores(sorted(node.cpus), threads)),
    )


def _cores(cpus: Sequence[int], threads: int) -> list[frozenset[int]]:
    count = len(cpus) // threads
    return [frozenset(cpus[at::count]) for at in range(count)]


def dual_socket(allowed: str | None = None, allowed_nodes: str | None = None) -> NumaTopology:
    """Two sockets with 16 cores of two threads each."""
    return a_topology(
        "0-15,32-47", "16-31,48-63", allowed=allowed, allowed_nodes=allowed_nodes, threads=2
    )


def gpus_near(*affinities: str | None) -> tuple[Gpu, ...]:
    """A GPU for each, which is near these processors."""
    return tuple(
        fake_gpu(index, cpu_affinity=affinity, used_gib=0)
        for index, affinity in enumerate(affinities)
    )


EIGHT = gpus_near(*["0-15,32-47"] * 4, *["16-31,48-63"] * 4)
"""Of a machine as `dual_socket`."""


def show_machine(root: Path, topology: NumaTopology) -> Path:
    """The files of /sys and /proc of such a machine, below `root`."""
    nodes = root / "sys/devices/system/node"
    nodes.mkdir(parents=True)
    (nodes / "online").write_text(f"{cpu_list(node.number for node in topology.nodes)}\n")
    for node in topology.nodes:
        place = nodes / f"node{node.number}"
        place.mkdir()
        (place / "cpulist").write_text(f"{cpu_list(node.cpus)}\n")
        size = f"{node.memory_bytes // 1024:15} kB"
        (place / "meminfo").write_text(f"Node {node.number} MemTotal: {size}\n")
        for cpu in node.cpus:
            _show_cpu(root, cpu, node.socket, topology)
    (root / "proc/self").mkdir(parents=True)
    allowed = cpu_list(topology.allowed_nodes)
    (root / "proc/self/status").write_text(f"Name:\tx\nMems_allowed_list:\t{allowed}\nThreads: 1\n")
    return root


def _show_cpu(root: Path, cpu: int, socket: int | None, topology: NumaTopology) -> None:
    place = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    place.mkdir(parents=True)
    (place / "physical_package_id").write_text(f"{-1 if socket is None else socket}\n")
    for core in topology.cores:
        if cpu in core:
            (place / "thread_siblings_list").write_text(f"{cpu_list(core)}\n")
