"""Memory of a GPU that no job of zerotools holds: of other programs, or of no known process."""

from __future__ import annotations

from pathlib import Path

from zerotools.sensors.snapshot import Gpu

DRIVERS_OWN_BYTES = 1 << 30
"""The bytes that a driver may report as used besides those of processes: for itself and for each
context; NVML counts some contexts without a process. Less than that is not a leak."""


FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the initial pid namespace of the machine (PROC_PID_INIT_INO of the kernel)."""


def is_in_first_pid_namespace(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Return whether this process sees the pids of the machine. In a container, which has separate
    pids, NVML lists no processes, or pids that do not exist there."""
    try:
        return namespace.stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def unaccounted_bytes(gpu: Gpu) -> int | None:
    """Return the used bytes besides those of the listed processes; None: the driver does not report
    all. Memory that a process shares with the host (managed) is included, because NVML does not
    count it for the process."""
    held = [process.memory_used_bytes for process in gpu.processes]
    known = [size for size in held if size is not None]
    if gpu.memory_used_bytes is None or len(known) < len(held):
        return None
    return max(0, gpu.memory_used_bytes - sum(known))


USUAL_PART = 0.05
USUAL_LEAST_BYTES = 512 * 2**20
USUAL_WORDS = "5 % of the GPU's memory, at least 512 MiB"


def usual_foreign_bytes(gpu: Gpu) -> int:
    """Return the bytes of a GPU that may be in use before a job gets it, by default."""
    return max(USUAL_LEAST_BYTES, int(USUAL_PART * (gpu.memory_total_bytes or 0)))


def foreign_bytes(gpu: Gpu) -> int:
    """Return the bytes of a GPU in use, without those of processes that only draw on a screen."""
    return max(0, (gpu.memory_used_bytes or 0) - drawn_bytes(gpu))


def drawn_bytes(gpu: Gpu) -> int:
    """Return how much of a GPU processes hold that only draw on a screen: it is not free for a
    job."""
    return sum(p.memory_used_bytes or 0 for p in gpu.processes if p.graphics)
