from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.store_output.upload_memory import LEAST_MEMORY, LEAST_PART, UploadMemory

MIB = 2**20


@pytest.mark.parametrize("mib", [64, 100, 256, 1024, 8192])
@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("size", [1, 10 * MIB, 50 * 2**30, 2**42])
def test_all_shares_together_are_the_budget(mib: int, size: int, count: int) -> None:
    memory = UploadMemory.of(MemoryBudget(mib * MIB, workers=2), count)
    part = memory.part_bytes(size)
    assert part >= LEAST_PART
    assert size / part <= 10_000
    held = memory.held_bytes * memory.files + memory.budget.max_memory
    assert held <= mib * MIB * 3 // 4
    parallel = memory.parallel(size)
    if parallel > 1:
        assert memory.files * (parallel + 2) * part <= mib * MIB // 4


def test_too_little_for_one_part_is_refused() -> None:
    with pytest.raises(BadRequest, match="at least 67108864"):
        UploadMemory.of(MemoryBudget(LEAST_MEMORY - 1), 1)
