"""Real, unmodified DeepSpeed loads what we lay out at another world size, and trains on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deepspeed_runs.judging import differences

pytestmark = pytest.mark.deepspeed

# Each value and each risky pair once: precisions, several groups, tied and frozen weights, buffers,
# round robin, alignment, sub-groups, ranks that hold padding alone, excluded weights, optimizers.
TO_THREE = (
    "bf16-optimizer-w4-tiny-group",
    "z1-bf16-w2-exclude-frozen",
    "z1-fp32-w2-adapter",
    "z2-bf16-w2-round-robin",
    "z2-fp16-w2",
    "z3-bf16-w2",
    "z3-bf16-w2-exclude-frozen",
    "z3-fp32-w2-frozen-group",
    "z3-fp32-w2-sub-groups",
)
TO_TWO = (
    "bf16-optimizer-w3-immediate",
    "z1-fp32-w3-round-robin",
    "z2-bf16-w3-aligned-round-robin",
    "z2-fp32-w3-tiny-group",
    "z3-bf16-w3-adapter",
    "z3-bf16-w3-sub-groups",
    "z3-bf16-w4-tiny-group",
    "z3-fp16-w2",
)
TO_ONE = (
    "z1-bf16-w4",
    "z2-fp32-w2-rmsprop",
    "z2-fp32-w4-straddle",
    "z3-bf16-w2-lion",
    "z3-bf16-w4",
)


@pytest.mark.parametrize(
    ("cases", "ranks"), [(TO_THREE, 3), (TO_TWO, 2), (TO_ONE, 1)], ids=["to-3", "to-2", "to-1"]
)
def test_deepspeed_loads_it_and_has_the_same_state(
    cases: tuple[str, ...], ranks: int, tmp_path: Path
) -> None:
    assert differences(cases, ranks, tmp_path) == []
