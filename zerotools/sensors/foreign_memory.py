"""Memory of a GPU that programs hold which are no jobs, and how much of it is usual."""

from __future__ import annotations

from zerotools.sensors.snapshot import Gpu

USUAL_PART = 0.05
USUAL_LEAST_BYTES = 512 * 2**20
USUAL_WORDS = "5 % of the GPU's memory, at least 512 MiB"


def usual_foreign_bytes(gpu: Gpu) -> int:
    """How much of a GPU may be in use before a job has it, where no other limit is set."""
    return max(USUAL_LEAST_BYTES, int(USUAL_PART * (gpu.memory_total_bytes or 0)))


def foreign_bytes(gpu: Gpu) -> int:
    """How much of a GPU is in use, beside what processes hold that only draw on a screen."""
    return max(0, (gpu.memory_used_bytes or 0) - drawn_bytes(gpu))


def drawn_bytes(gpu: Gpu) -> int:
    """How much of a GPU processes hold that only draw on a screen: it is not free for a job."""
    return sum(p.memory_used_bytes or 0 for p in gpu.processes if p.graphics)
