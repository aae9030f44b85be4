"""GPU memory of programs that are not jobs, and the usual amount of it."""

from __future__ import annotations

from zerotools.sensors.snapshot import Gpu

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
