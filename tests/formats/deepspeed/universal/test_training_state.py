"""What universal checkpoints of DeepSpeed's own converter say of their runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.core.training_state import Scalar
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.universal.optimizer_state import misplaced_values

CASES = sorted(DEEPSPEED.glob("universal-*"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_the_run_is_what_the_engine_said(case: Path) -> None:
    truth = json.loads((case / "truth.json").read_text())
    training = training_of(read(case / "checkpoint"))
    assert training.frozen == set(truth["frozen"])
    assert training.precision == {"fp32": FLOAT32, "bf16": BFLOAT16}[truth["dtype"]]
    assert (training.optimizer, training.steps, training.skipped) == ("AdamW", 2, 0)
    trained = {name for group in training.groups for name in group.params}
    assert {key.name for key in training.scalars} == trained
    assert set(training.scalars.values()) == {Scalar(2.0, FLOAT32)}
    assert training.ds_config == truth["config"]


def test_round_robin_of_the_converter_is_a_problem_of_every_weight() -> None:
    checkpoint = read(DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint")
    model, saved = checkpoint.native.model, checkpoint.native.saved
    assert list(misplaced_values(saved, model)) == []
    model.fields.tree["ds_config"]["zero_optimization"]["round_robin_gradients"] = True
    swapped = {problem.file for problem in misplaced_values(saved, model)}
    # Four parameters over three ranks are swapped; three lie in their order.
    assert swapped == {f"zero/{name}/fp32.pt" for name in saved.shapes[0]}
    saved.tree["param_alignment_paddings"][0][0] = 3
    assert list(misplaced_values(saved, model)) == []
