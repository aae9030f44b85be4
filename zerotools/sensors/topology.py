"""The memory nodes of the machine (NUMA), their processors, and which of both may be used here.

Source: Linux Documentation/ABI/stable/sysfs-devices-node, and /sys/devices/system/cpu in
Documentation/admin-guide/cputopology.rst. A node lists the processors that are online; it may have
none (CXL, the memory of a GPU of Grace Hopper), or no memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zerotools.sensors.cpu_lists import cpu_list, numbers_in

_NODES = Path("sys/devices/system/node")
_CPUS = Path("sys/devices/system/cpu")
_MEMORY = re.compile(r"MemTotal:\s*(\d+) kB")
_ALLOWED_NODES = re.compile(r"^Mems_allowed_list:\s*(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """Memory that is equally near to each of `cpus`; `socket` is theirs, None if it is unknown."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class NumaTopology:
    """All memory nodes; the processors and the nodes that this process may use (its affinity and
    its cpuset); and, if requested, the physical `cores`, each with its hardware threads."""

    nodes: tuple[MemoryNode, ...] = ()
    allowed_cpus: frozenset[int] = frozenset()
    allowed_nodes: frozenset[int] = frozenset()
    cores: tuple[frozenset[int], ...] = ()

    @property
    def is_divided(self) -> bool:
        """True if some processors are nearer to some memory than others are."""
        return sum(1 for node in self.nodes if node.cpus) > 1

    def homes_of(self, cpus: Collection[int]) -> tuple[MemoryNode, ...]:
        """Return the nodes that have some of these processors."""
        return tuple(node for node in self.nodes if not node.cpus.isdisjoint(cpus))

    def memory_of(self, nodes: Iterable[MemoryNode]) -> tuple[int, ...]:
        """Return the numbers of the nodes with usable memory."""
        numbers = {node.number for node in nodes if node.memory_bytes}
        return tuple(sorted(numbers & self.allowed_nodes))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the cores."""
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
        """Read the topology that `to_json` wrote. Raises ValueError if it is not one."""
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
            raise ValueError(f"it is not a topology: {type(error).__name__}: {error}") from error
        return cls(nodes, *allowed)


class ReadTopology(Protocol):
    """Reads the topology of the machine; its `cores`, a file for each, if they are requested."""

    def __call__(self, *, cores: bool = False) -> NumaTopology:
        """Return the current topology of the machine."""
        ...


def read_topology(
    root: Path = Path("/"),
    cpus: Callable[[int], Collection[int]] = os.sched_getaffinity,
    *,
    cores: bool = False,
) -> NumaTopology:
    """Return the current topology; `root` contains /proc and /sys, `cpus` returns the affinity of a
    process. If /sys shows no nodes, the result has none."""
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
