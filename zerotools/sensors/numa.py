"""The NUMA nodes of the machine: their processors and memory, and the processors and memory near
each GPU.

Source: Linux Documentation/ABI/stable/sysfs-devices-node, and /sys/devices/system/cpu in
Documentation/admin-guide/cputopology.rst. A node lists only processors that are online. A node may
have no processors (CXL, GPU memory of Grace Hopper), or no memory.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotools.sensors.snapshot import Gpu

_NODES = Path("sys/devices/system/node")
_CPUS = Path("sys/devices/system/cpu")
_MEMORY = re.compile(r"MemTotal:\s*(\d+) kB")
_ALLOWED_NODES = re.compile(r"^Mems_allowed_list:\s*(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A NUMA node: memory, and the processors `cpus` that are near to it. `socket` is the processor
    socket, or None if it is unknown.
    """

    number: int
    cpus: frozenset[int]
    memory_bytes: int
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class NumaTopology:
    """All NUMA nodes of the machine, with the processors and nodes that this process may use.

    The affinity and the cpuset of the process decide which ones it may use. `cores` has the
    hardware threads of each physical core; it is empty unless cores were requested.
    """

    nodes: tuple[MemoryNode, ...] = ()
    allowed_cpus: frozenset[int] = frozenset()
    allowed_nodes: frozenset[int] = frozenset()
    cores: tuple[frozenset[int], ...] = ()

    @property
    def is_divided(self) -> bool:
        """True if at least two nodes have processors. Then some memory is further away from a
        processor than other memory.
        """
        return sum(1 for node in self.nodes if node.cpus) > 1

    def homes_of(self, cpus: Collection[int]) -> tuple[MemoryNode, ...]:
        """Return the nodes that have at least one of these processors."""
        return tuple(node for node in self.nodes if not node.cpus.isdisjoint(cpus))

    def memory_of(self, nodes: Iterable[MemoryNode]) -> tuple[int, ...]:
        """Return the numbers of the nodes that have memory and that this process may use."""
        numbers = {node.number for node in nodes if node.memory_bytes}
        return tuple(sorted(numbers & self.allowed_nodes))

    def to_json(self) -> dict[str, Any]:
        """Return the topology as plain values, without the cores."""
        return {
            "nodes": [
                {
                    "number": node.number,
                    "cpus": cpu_list(node.cpus),
                    "memory_bytes": node.memory_bytes,
                    "socket": node.socket,
                }
                for node in self.nodes
            ],
            "allowed_cpus": cpu_list(self.allowed_cpus),
            "allowed_nodes": cpu_list(self.allowed_nodes),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> NumaTopology:
        """Read the topology from the values that `to_json` returned. Raises ValueError if they are
        wrong.
        """
        try:
            nodes = tuple(
                MemoryNode(
                    int(node["number"]),
                    numbers_in(node["cpus"]),
                    int(node["memory_bytes"]),
                    node["socket"],
                )
                for node in tree["nodes"]
            )
            allowed = numbers_in(tree["allowed_cpus"]), numbers_in(tree["allowed_nodes"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"it does not describe memory nodes: {type(error).__name__}: {error}"
            ) from error
        return cls(nodes, *allowed)


class ReadTopology(Protocol):
    """A function that reads the topology. The physical cores are read only if `cores` is true,
    because this needs a file for each processor."""

    def __call__(self, *, cores: bool = False) -> NumaTopology:
        """Return the current topology of the machine."""
        ...


def read_topology(
    root: Path = Path("/"),
    cpus: Callable[[int], Collection[int]] = os.sched_getaffinity,
    *,
    cores: bool = False,
) -> NumaTopology:
    """Return the current topology. `root` contains /proc and /sys, and `cpus` returns the affinity
    of a process. If /sys has no nodes, the result has no nodes.
    """
    nodes, allowed = tuple(_nodes(root)), frozenset(cpus(0))
    found = _ALLOWED_NODES.search(_text(root / "proc/self/status"))
    mems = _listed(found[1]) if found else frozenset(node.number for node in nodes)
    online = frozenset[int]().union(*(node.cpus for node in nodes))
    return NumaTopology(nodes, allowed, mems, tuple(_cores(root, online)) if cores else ())


def _nodes(root: Path) -> Iterator[MemoryNode]:
    for number in sorted(_listed(_text(root / _NODES / "online"))):
        place = root / _NODES / f"node{number}"
        cpus = _listed(_text(place / "cpulist"))
        memory = _MEMORY.search(_text(place / "meminfo"))
        size_bytes = 1024 * int(memory[1]) if memory else 0
        yield MemoryNode(number, cpus, size_bytes, _socket(root, min(cpus, default=-1)))


def _socket(root: Path, cpu: int) -> int | None:
    text = _text(root / _CPUS / f"cpu{cpu}/topology/physical_package_id").strip()
    return int(text) if text.isdecimal() else None  # -1: the firmware does not tell


def _cores(root: Path, cpus: frozenset[int]) -> Iterator[frozenset[int]]:
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu in left:
            siblings = _listed(_text(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list"))
            core = (siblings & cpus) | {cpu}
            left -= core
            yield core


def _listed(text: str) -> frozenset[int]:
    try:
        return numbers_in(text.strip())
    except ValueError:
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:  # no such node, no /sys, or a processor that went away meanwhile
        return ""


_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
"""The number of the system call get_mempolicy, by architecture. Source:
include/uapi/asm-generic/unistd.h and arch/x86/entry/syscalls/syscall_64.tbl of Linux.
"""
_MOST_NODES = 1024
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_libc = ctypes.CDLL(None, use_errno=True)

MODES = ("default", "preferred", "bind", "interleave", "local", "preferred many")


def memory_policy() -> tuple[str, frozenset[int]]:
    """Return the kernel's memory policy for the calling thread: one of MODES, and the nodes from
    which the thread gets memory.

    libc has no function for this system call. Containers often forbid it, for example Docker
    without CAP_SYS_NICE.

    Raises:
        OSError: the system call is forbidden, or this kernel has no NUMA.
    """
    number = _GET_MEMPOLICY.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is None:
        raise OSError(38, os.strerror(38))
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (_MOST_NODES // _WORD))()
    # One more than the number of bits, because the kernel subtracts one (get_mempolicy(2), "BUGS").
    size = ctypes.c_ulong(_MOST_NODES + 1)
    if _libc.syscall(ctypes.c_long(number), ctypes.byref(mode), mask, size, None, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    nodes = (n for n in range(_MOST_NODES) if mask[n // _WORD] >> n % _WORD & 1)
    known = mode.value < len(MODES)
    return MODES[mode.value] if known else str(mode.value), frozenset(nodes)


_LEAST = 0.5
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class NearGpu:
    """The usable processors and memory near one GPU.

    Attributes:
        cpus: the numbers of the processors.
        homes: the memory nodes that these processors belong to.
        memory: the nodes in `homes` that have memory.
        sharers, place: the number of GPUs near the same processors, and the index of this GPU among
            them, from 0.
        why: the reason why no processor counts as near; None if `cpus` has processors, or if all
            processors are equally near.
    """

    cpus: frozenset[int] = frozenset()
    homes: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    place: int = 0
    sharers: int = 1
    why: str | None = None


def near_gpus(gpus: Sequence[Gpu], topology: NumaTopology) -> tuple[NearGpu, ...]:
    """Return the processors and the memory near each of `gpus`, which are all GPUs of the machine.

    A GPU is attached to one memory node. A process on the processors of another node reaches the
    GPU, and the buffers that the GPU copies from, over the link between the two nodes. So the
    process of a GPU should run on the node of that GPU, unless this node has too few usable
    processors. For example, a container may have 2 processors of that node and 30 of the other. Or
    a machine has many small nodes, and most of them have no GPU. The rule:

        near enough    (usable processors near the GPU) / (GPUs near these processors)
                       >= 0.5 * (all usable processors) / (all GPUs)

    If the node of the GPU has too few processors, all nodes of its socket are tried. If the socket
    has too few processors as well, no processor counts as near. The result depends only on the
    machine and not on running jobs, so a new job does not move other jobs.
    """
    if not topology.is_divided:
        return tuple(NearGpu() for _ in gpus)
    reach = [_reach(gpu, topology) for gpu in gpus]
    return tuple(_near(at, gpus, reach, topology) for at in range(len(gpus)))


Reach = tuple[frozenset[int], ...]
"""The processors of the GPU's node, and the processors of its socket. Both are empty if they are
unknown.
"""


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
    return (
        f"only {len(usable)} of {whose} may be used here, too few for a process that may use "
        f"{len(allowed)} processors"
    )


def _online(topology: NumaTopology) -> frozenset[int]:
    return frozenset[int]().union(*(node.cpus for node in topology.nodes))


def _affinity(gpu: Gpu) -> frozenset[int]:
    try:
        return numbers_in(gpu.cpu_affinity or "")
    except ValueError:
        return frozenset()


def _shown(cpus: frozenset[int]) -> str:
    """Return a list of processors as text, or only their number if the text would be long."""
    listed = cpu_list(cpus)
    return listed if len(listed) <= _LONGEST else f"{len(cpus)} processors"
