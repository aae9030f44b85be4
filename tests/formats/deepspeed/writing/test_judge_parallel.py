"""Real DeepSpeed loads pipelines, tensor-parallel runs and experts at another number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.deepspeed_runs.judging import Move, differences
from tests.matrices import FULL
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings

pytestmark = pytest.mark.deepspeed

TO_TWO = (
    "experts-z1-fp32-w4-round-robin",
    "experts-z2-bf16-w4-data-first",
    "pipeline-z1-fp32-w4",
    "tensor-parallel-z1-bf16-w4",
)
TO_FOUR = ("tensor-parallel-z2-fp32-w2",)
EXPERTS_TO_FOUR = ("experts-z2-bf16-w2",)


OLDER_TO_FOUR = (
    # Its stage 1 had no round robin, whatever its configuration says.
    Move("experts-z1-fp32-w4-round-robin", ZeroSettings(round_robin=True), "0.10.3"),
    *((Move("experts-z2-bf16-w2", version="0.18.9"),) if FULL else ()),
)
EXPERTS_OF_AUTOEP = (Move("autoep-z3-bf16-w4", expert_ranks=1),)
UNIVERSAL = (Move("autoep-z3-bf16-w4", ZeroSettings(stage=2), is_universal=True),)
FROM_STAGE_0 = (Move("pipeline-z0-bf16-w2", ZeroSettings(stage=1)),)


@pytest.mark.parametrize(
    ("moves", "ranks"),
    [
        ((*map(Move, TO_TWO),), 2),
        # Experts first: the groups of tensor parallelism stay in the process.
        ((*map(Move, EXPERTS_TO_FOUR), *OLDER_TO_FOUR, *map(Move, TO_FOUR)), 4),
        (FROM_STAGE_0, 2),
        (EXPERTS_OF_AUTOEP, 1),
        (UNIVERSAL, 2),
    ],
    ids=["to-2", "to-4", "stage-0", "autoep", "autoep-universal"],
)
def test_deepspeed_loads_it_beside_the_second_kind_of_parallelism(
    moves: tuple[Move, ...], ranks: int, tmp_path: Path
) -> None:
    assert differences(moves, ranks, tmp_path, "judge_parallel") == []
