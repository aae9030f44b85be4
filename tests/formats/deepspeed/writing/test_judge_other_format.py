"""Real DeepSpeed goes on from what came out of torch DCP, at another world size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.deepspeed_runs.fresh_judging import differences

pytestmark = pytest.mark.deepspeed

CASES = ("z1-fp32-w3", "z2-bf16-w2", "z2-bf16-w2-sgd", "z3-fp32-w2-sub-groups", "z3-bf16-w2")


def test_deepspeed_has_the_state_that_dcp_held(tmp_path: Path) -> None:
    assert differences(CASES, 3, tmp_path) == []
