"""Real, unmodified DeepSpeed loads the weights of thinned checkpoints, and does not resume them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.golden.deepspeed_runs.launch import launch
from tests.golden_files import DEEPSPEED
from tests.ops.thinning.made import thinned
from zerotools.core.thinning_changes import Keep
from zerotools.formats.deepspeed.writing.thin import without_state

CASES = {
    "bf16-optimizer-w2": Keep.WEIGHTS,
    "z0-bf16-w2": Keep.WEIGHTS,
    "z1-bf16-w2-client-state": Keep.WEIGHTS,
    "z2-bf16-w2": Keep.WEIGHTS,
    "z2-fp32-w2": Keep.MASTERS,
    "z3-bf16-w2": Keep.WEIGHTS,
}


@pytest.mark.deepspeed
def test_deepspeed_loads_the_weights_and_refuses_to_resume(tmp_path: Path) -> None:
    told = []
    for case, keep in CASES.items():
        path = tmp_path / case / "given"
        shutil.copytree(DEEPSPEED / case / "checkpoint", path)
        told.append((case, thinned(path, keep).plan.thinning.keep))
    assert dict(told)["z3-bf16-w2"] == Keep.MASTERS
    (tmp_path / "cases.json").write_text(json.dumps(told))
    launch("tests.golden.deepspeed_runs.judge_thinned", [], 2, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {case: [] for case in CASES}


def test_only_the_state_of_an_optimizer_goes() -> None:
    groups = [{"lr": 0.1, "params": [0]}]
    tree = {"a": {"state": {0: {"step": 1}}, "param_groups": groups}, "state": {"of": "else"}}
    assert without_state(tree) == {"a": {"param_groups": groups}, "state": {"of": "else"}}
    never_stepped = {"state": {}, "param_groups": groups}
    assert without_state(never_stepped) is never_stepped
    assert without_state([1]) == [1]
