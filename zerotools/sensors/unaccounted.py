"""Memory of a GPU that no process is told to hold."""

from __future__ import annotations

from pathlib import Path

from zerotools.sensors.snapshot import Gpu

DRIVERS_OWN_BYTES = 1 << 30
"""What a driver may report as used beside what processes hold: for itself and for each context, of
which NVML counts some with no process. Less than that is nobody's residue."""


FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own pid namespace (PROC_PID_INIT_INO of the kernel)."""


def is_in_first_pid_namespace(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Return whether this process sees the pids of the machine. In a container, which has pids of
    its own, NVML lists no processes, or pids that nobody knows there."""
    try:
        return namespace.stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def unaccounted_bytes(gpu: Gpu) -> int | None:
    """What is used beside what the listed processes hold; None: the driver does not say it all.
    Memory that a process shares with the host (managed) is among it, as NVML does not count that
    as the process's."""
    held = [process.memory_used_bytes for process in gpu.processes]
    known = [size for size in held if size is not None]
    if gpu.memory_used_bytes is None or len(known) < len(held):
        return None
    return max(0, gpu.memory_used_bytes - sum(known))
