"""Real DeepSpeed loads the universal checkpoints that we write, also where its own converter fails:
on everything but Adam, elastic state, round robin, tiny groups, and several groups at stage 3."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.started import run
from tests.formats.deepspeed.describing import contents
from tests.golden.deepspeed_runs.launch import environment
from tests.golden.deepspeed_runs.universal_judging import Run, differences
from tests.golden_files import DEEPSPEED
from zerotools.formats import read

pytestmark = pytest.mark.deepspeed

# Each target stage from each source stage, precisions, several groups with options of their own (of
# which ds_to_universal gives stage 3 those of the first for all), tied and frozen weights.
AT_THREE = (
    Run("bf16-optimizer-w2", 1),
    Run("z2-bf16-w2", 3),
    Run("z3-bf16-w3-sub-groups", 2),
)
# What ds_to_universal fails on, or swaps.
AT_TWO = (
    Run("bf16-optimizer-w4-tiny-group", 1),
    Run("z1-bf16-w3-elastic-sgd", 1),
    Run("z1-fp32-w2-momentum", 2),
    Run("z2-bf16-w2-round-robin", 2),
    Run("z2-fp32-w2-elastic", 3),
    Run("z2-fp32-w2-lion", 2),
)
AT_ONE = (
    Run("z1-bf16-w2-before-first-step", 1),
    Run("z2-fp32-w4-round-robin", 3),
    Run("z3-bf16-w2", 3),
    Run("z3-fp16-w2", 2),
    Run("z3-fp32-w3-straddle", 1),
)


@pytest.mark.parametrize(
    ("runs", "ranks"), [(AT_THREE, 3), (AT_TWO, 2), (AT_ONE, 1)], ids=["at-3", "at-2", "at-1"]
)
def test_deepspeed_has_the_same_state(runs: tuple[Run, ...], ranks: int, tmp_path: Path) -> None:
    assert differences(runs, ranks, tmp_path) == []


FAILS = {
    "z2-fp32-w2!": "Required universal_checkpoint_info state is missing",
    "z1-fp32-w2-momentum": "KeyError: 'exp_avg'",
    "z2-fp32-w2-lion": "KeyError: 'exp_avg_sq'",
    "z2-fp32-w2-elastic": "AttributeError|TypeError",
    "bf16-optimizer-w4-tiny-group": "length must be non-negative",
    "z3-bf16-w2-before-first-step": "KeyError: 0",
}
SWAPPED = "z2-bf16-w2-round-robin"


# Of DeepSpeed alone: what we write of the same cases is loaded above.
@pytest.mark.full
def test_where_the_converter_of_deepspeed_fails(tmp_path: Path) -> None:
    """So that it is known when it no longer does."""
    cases = [str(DEEPSPEED / name) for name in (*FAILS, SWAPPED)]
    run(
        [sys.executable, "-m", "tests.golden.deepspeed_runs.converting", "outcomes.json", *cases],
        cwd=tmp_path,
        env=environment(0, 1, 0),
        check=True,
        timeout=300,
    )
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    for name, why in FAILS.items():
        raised = outcomes[name.removesuffix("!")]
        assert any(part in raised for part in why.split("|")), (name, raised)
    assert outcomes[SWAPPED] is None
    theirs = read(tmp_path / SWAPPED / "theirs")
    original = contents(read(DEEPSPEED / SWAPPED / "checkpoint"))
    wrong = {key for key, data in contents(theirs).items() if original[key] != data}
    assert {"parts.1.weight|param", "parts.2.weight|exp_avg"} <= wrong
    # And they are not taken for good.
    assert {key.partition("|")[0] for key in wrong} <= {each.tensor for each in theirs.problems}
