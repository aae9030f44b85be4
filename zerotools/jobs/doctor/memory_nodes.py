"""Memory nodes (NUMA): which GPUs are near which processors, and whether jobs may use these."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zerotools.jobs.doctor.finding import DoctorFinding, ok, warning
from zerotools.sensors.cpu_lists import cpu_list
from zerotools.sensors.numa import (
    NearGpu,
    NumaTopology,
    ReadTopology,
    memory_policy,
    near_gpus,
    read_topology,
)
from zerotools.sensors.snapshot import Gpu

WHAT = "memory nodes"
HOW_TO = "zerotools help numa"


def look_at_memory_nodes(
    gpus: Sequence[Gpu],
    told: Mapping[str, Any] | None,
    read: ReadTopology = read_topology,
    policy: Callable[[], object] = memory_policy,
) -> Iterator[DoctorFinding]:
    """Check memory nodes. `told` is the daemon's record of the nodes and of those that it may use;
    None: it does not run, or is older, and this process looks. A machine with one node gives no
    finding."""
    topology = _told(told) or read()
    if not topology.is_divided:
        return
    near = near_gpus(gpus, topology)
    yield ok(WHAT, "; ".join(_nodes(topology, gpus, near)))
    for gpu, found in zip(gpus, near, strict=True):
        if found.why is not None:
            yield warning(
                f"GPU {gpu.index}",
                f"its ranks are not bound: {found.why}",
                "its jobs run, and copy over the link between the memory nodes; give the daemon "
                f"processors near it (cpuset of the container, AllowedCPUs= of the unit; {HOW_TO})",
            )
    yield from _policy(policy)


def _told(tree: Mapping[str, Any] | None) -> NumaTopology | None:
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
        do = "memory is allocated on the node of the rank while that node has free memory"
        if error.errno == errno.EPERM:
            do += "; Docker allows it with --cap-add SYS_NICE"
        yield warning(WHAT, f"none can be preferred: {os.strerror(error.errno or 0)}", do)
