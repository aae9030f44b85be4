"""Memory of a GPU that is in use before a job starts there: by other programs, or by no process
that the driver lists.

The functions know nothing of jobs: `foreign_bytes` is for a GPU without a job.
"""

from __future__ import annotations

from pathlib import Path

from zerotools.sensors.snapshot import Gpu

DRIVERS_OWN_BYTES = 1 << 30
"""The largest number of bytes without a process that is not taken for a leak. The driver needs
memory for itself and for each context, and NVML lists some contexts without a process.
"""


FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode number of the first pid namespace of a machine (PROC_PID_INIT_INO of the kernel)."""


def is_in_first_pid_namespace(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Return whether this process is in the first pid namespace, so that it sees the pids of the
    machine.

    In a container with its own pids, NVML lists no processes, or pids that do not exist there.
    """
    try:
        return namespace.stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def unaccounted_bytes(gpu: Gpu) -> int | None:
    """Return the used bytes of a GPU that no listed process holds, or None if the driver does not
    report the memory of all processes.

    Memory that a process shares with the host (managed memory) is included, because NVML does not
    count it for the process.
    """
    held = [process.memory_used_bytes for process in gpu.processes]
    known = [size for size in held if size is not None]
    if gpu.memory_used_bytes is None or len(known) < len(held):
        return None
    return max(0, gpu.memory_used_bytes - sum(known))


USUAL_PART = 0.05
USUAL_LEAST_BYTES = 512 * 2**20
USUAL_WORDS = "5 % of the GPU's memory, at least 512 MiB"


def usual_foreign_bytes(gpu: Gpu) -> int:
    """Return the default limit in bytes for other programs' memory on a GPU that a job gets."""
    return max(USUAL_LEAST_BYTES, int(USUAL_PART * (gpu.memory_total_bytes or 0)))


def foreign_bytes(gpu: Gpu) -> int:
    """Return the used bytes of a GPU without jobs, except those of processes that only draw on a
    screen.
    """
    return max(0, (gpu.memory_used_bytes or 0) - drawn_bytes(gpu))


def drawn_bytes(gpu: Gpu) -> int:
    """Return the bytes of a GPU's memory that are used by processes which only draw on a screen. A
    job cannot use these bytes.
    """
    return sum(p.memory_used_bytes or 0 for p in gpu.processes if p.graphics)
