"""Real, unmodified DeepSpeed loads what we lay out for other ranks and stages, and trains on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.deepspeed_runs.judging import Move, differences
from tests.matrices import FULL
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings

pytestmark = pytest.mark.deepspeed

# Each value once: precisions, several groups, tied and frozen weights, buffers, round robin,
# alignment, sub-groups, ranks that hold padding alone, excluded weights, optimizers. The full
# matrix has more pairs of them; `test_lay_out_resharded` compares what is written of every golden
# case with what DeepSpeed wrote.
TO_THREE = (
    "bf16-optimizer-w4-tiny-group",
    "z1-bf16-w2-exclude-frozen",
    "z2-bf16-w2-round-robin",
    "z3-bf16-w2-nvme",
    "z3-fp32-w2-frozen-group",
)
TO_TWO = (
    "z2-bf16-w3-aligned-round-robin",
    "z3-bf16-w3-adapter",
    "z3-bf16-w4-tiny-group",
    "z3-fp16-w2",
    "z3-fp32-w3-muon-sub-groups",
)
TO_ONE = ("z2-fp32-w4-straddle", "z3-bf16-w2-lion")
if FULL:
    TO_THREE += ("z2-fp32-w2-muon", "z3-bf16-w2-exclude-frozen", "z3-fp32-w2-sub-groups")
    TO_TWO += (
        "bf16-optimizer-w3-immediate",
        "z1-fp32-w3-round-robin",
        "z2-fp32-w3-tiny-group",
        "z3-bf16-w3-sub-groups",
    )
    TO_ONE += ("z2-fp32-w2-rmsprop", "z3-bf16-w4")


# Other stages, sub-groups and orders than those that were saved, and elastic state as rigid.
MOVED_TO_THREE = (
    Move("bf16-optimizer-w2", ZeroSettings(stage=2)),
    Move("z2-bf16-w2-exclude-frozen", ZeroSettings(stage=3)),
    Move("z2-fp32-w2-elastic"),
    Move("z3-bf16-w2", ZeroSettings(sub_group_size=30)),
    Move("mics-z3-bf16-w4", version="0.18.9"),
    Move("z0-bf16-w2", ZeroSettings(stage=1), "0.14.5"),
)
if FULL:
    MOVED_TO_THREE += (
        Move("z1-bf16-w4-tiny-group", ZeroSettings(stage=3)),
        Move("z3-fp16-w2", ZeroSettings(stage=1)),
        Move("sequence-z3-bf16-w4", version="0.18.9"),
        Move("z2-fp32-w2-muon", ZeroSettings(stage=3)),
        Move("sequence-z2-bf16-w4", version="0.18.9"),
    )
MOVED_TO_TWO = (
    Move("z2-bf16-w3", ZeroSettings(stage=1, round_robin=True)),
    Move("z3-bf16-w3-adapter", ZeroSettings(stage=2)),
)
MOVED_TO_ONE = (Move("z1-bf16-w3-elastic-sgd", ZeroSettings(stage=3)),)
if FULL:
    MOVED_TO_TWO += (
        Move("z1-fp32-w3-round-robin", ZeroSettings(round_robin=False)),
        Move("z2-fp32-w3-tiny-group", ZeroSettings(stage=3, sub_group_size=30)),
        Move("z3-fp32-w3-muon-sub-groups", ZeroSettings(stage=1)),
    )
    MOVED_TO_ONE += (Move("z3-bf16-w2-exclude-frozen", ZeroSettings(stage=1)),)


@pytest.mark.parametrize(
    ("moves", "ranks"),
    [
        ((*map(Move, TO_THREE), *MOVED_TO_THREE), 3),
        ((*map(Move, TO_TWO), *MOVED_TO_TWO), 2),
        ((*map(Move, TO_ONE), *MOVED_TO_ONE), 1),
    ],
    ids=["to-3", "to-2", "to-1"],
)
def test_deepspeed_loads_it_and_has_the_same_state(
    moves: tuple[Move, ...], ranks: int, tmp_path: Path
) -> None:
    assert differences(moves, ranks, tmp_path) == []
