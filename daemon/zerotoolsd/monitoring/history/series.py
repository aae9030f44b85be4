"""The stored numbers of the machine and of its jobs, each with a name.

    host.memory_used_bytes                            bytes
    host.memory_available_bytes                       bytes
    host.swap_used_bytes                              bytes
    host.cpu_percent                                  of all cores
    host.memory_stalled_percent                       PSI, some, of the last 10 s
    gpu.UUID.memory_used_bytes                        bytes
    gpu.UUID.utilization_percent
    gpu.UUID.temperature_celsius
    gpu.UUID.power_watts
    job.ID.host_memory_bytes                          resident, of all processes of its attempt
    job.ID.gpu.UUID.memory_used_bytes                 by the driver's list of processes

All of it is visible to every user of the machine, as in /proc and by nvidia-smi.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.sensors.snapshot import Gpu, Host, Snapshot
from zerotoolsd.resources.gpu_sharing.measured_use import Owner

_OF_GPU = ("memory_used_bytes", "utilization_percent", "temperature_celsius", "power_watts")


def series_of(
    snapshot: Snapshot,
    gpus_of_attempts: Mapping[Owner, Mapping[str, int]],
    host_of_attempts: Mapping[Owner, int],
) -> dict[str, float]:
    """Return the numbers of one moment; unmeasured ones are left out."""
    found = _host(snapshot.host)
    if snapshot.gpus_error is None:
        for gpu in snapshot.gpus:
            found |= _gpu(gpu)
    for (job, _), used in host_of_attempts.items():
        found[f"job.{job}.host_memory_bytes"] = used
    for (job, _), gpus in gpus_of_attempts.items():
        for uuid, used in gpus.items():
            found[f"job.{job}.gpu.{uuid}.memory_used_bytes"] = used
    return found


def _host(host: Host) -> dict[str, float]:
    stall = host.pressure.memory if host.pressure else None
    values = {
        "memory_used_bytes": host.memory_used_bytes,
        "memory_available_bytes": host.memory_available_bytes,
        "swap_used_bytes": host.swap_used_bytes,
        "cpu_percent": host.cpu_percent,
        "memory_stalled_percent": None if stall is None else stall.some_avg10_percent,
    }
    return {f"host.{name}": float(value) for name, value in values.items() if value is not None}


def _gpu(gpu: Gpu) -> dict[str, float]:
    if gpu.uuid is None:
        return {}
    values = {name: getattr(gpu, name) for name in _OF_GPU}
    return {f"gpu.{gpu.uuid}.{n}": float(value) for n, value in values.items() if value is not None}
