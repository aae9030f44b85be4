"""Real DeepSpeed loads pipelines, tensor-parallel runs and experts at another number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deepspeed_runs.judging import Move, differences

pytestmark = pytest.mark.deepspeed

TO_TWO = (
    "experts-z1-fp32-w4-round-robin",
    "experts-z2-bf16-w4-data-first",
    "pipeline-z1-fp32-w4",
    "tensor-parallel-z1-bf16-w4",
)
TO_FOUR = ("experts-z2-bf16-w2", "tensor-parallel-z2-fp32-w2")


@pytest.mark.parametrize(("cases", "ranks"), [(TO_TWO, 2), (TO_FOUR, 4)], ids=["to-2", "to-4"])
def test_deepspeed_loads_it_beside_the_second_kind_of_parallelism(
    cases: tuple[str, ...], ranks: int, tmp_path: Path
) -> None:
    assert differences(map(Move, cases), ranks, tmp_path, "judge_parallel") == []
