from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.ops.execution.memory_budget import MIN_TILE_BYTES, MemoryBudget


def test_a_budget_too_small_names_the_least_that_works() -> None:
    with pytest.raises(BadRequest, match=r"4 workers need at least 786432"):
        MemoryBudget(max_memory=1000, workers=4)
    assert MemoryBudget(max_memory=786432, workers=4).tile_bytes == MIN_TILE_BYTES
