"""What golden checkpoints say of their runs, against what the live engines said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from zerotools.core.dtypes import FLOAT32
from zerotools.core.training_state import Scalar
from zerotools.formats import read, training_of
from zerotools.ops.inspection.training_summary import json_value

CASES = sorted(
    path.parent
    for path in DEEPSPEED.glob("*/truth.json")
    if "param_groups" in json.loads(path.read_text()) and not path.parent.name.startswith("z0-")
)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_groups_are_those_of_the_engine(case: Path) -> None:
    checkpoint = read(case / "checkpoint")
    training = training_of(checkpoint)
    truth = json.loads((case / "truth.json").read_text())
    assert training.steps == truth["global_steps"]
    wanted = [(group.pop("names"), group) for group in truth["param_groups"]]
    assert [list(group.params) for group in training.groups] == [names for names, _ in wanted]
    if not getattr(checkpoint.native, "is_elastic", False):
        for group, (_, options) in zip(training.groups, wanted, strict=True):
            known = {key: json_value(value) for key, value in group.options.items()}
            assert {key: known.get(key) for key in options} == options


def test_a_tensor_step_keeps_its_type_and_a_number_has_none() -> None:
    tensor = training_of(read(DEEPSPEED / "z2-fp32-w2" / "checkpoint"))
    number = training_of(read(DEEPSPEED / "z2-bf16-w2-cpu-adam" / "checkpoint"))
    assert set(tensor.scalars.values()) == {Scalar(2.0, FLOAT32)}
    assert set(number.scalars.values()) == {Scalar(2, None)}
    assert {key.role for key in tensor.scalars} == {"step"}


@pytest.mark.parametrize(
    ("case", "scale", "dynamic"), [("z2-fp16-w2", 64.0, True), ("z2-fp16-w2-static", 128.0, False)]
)
def test_a_loss_scaler_keeps_its_numbers(case: str, scale: float, dynamic: bool) -> None:
    found = training_of(read(DEEPSPEED / case / "checkpoint")).loss_scale
    assert found is not None
    assert (found.scale, found.dynamic) == (scale, dynamic)


@pytest.mark.parametrize(
    ("lost", "knows"),
    [
        (None, True),
        ("layer_03-model_states.pt", False),
        ("bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", False),
    ],
)
def test_weights_of_a_pipeline_stage_without_its_state_are_not_called_frozen(
    tmp_path: Path, lost: str | None, knows: bool
) -> None:
    shutil.copytree(DEEPSPEED / "pipeline-z0-bf16-w2" / "checkpoint", tmp_path / "run")
    if lost is not None:
        (tmp_path / "run" / "global_step2" / lost).unlink()
    assert training_of(read(tmp_path / "run")).knows_frozen is knows


def test_bf16_has_no_loss_scale() -> None:
    assert training_of(read(DEEPSPEED / "z2-bf16-w2" / "checkpoint")).loss_scale is None


def test_the_experts_of_all_expert_parallel_ranks_are_in_their_group() -> None:
    checkpoint = read(DEEPSPEED / "experts-z2-bf16-w2" / "checkpoint")
    groups = training_of(checkpoint).groups
    members = {name for group in groups for name in group.params}
    assert members == {key.name for key in checkpoint.tensors if key.role == "exp_avg"}
    assert groups[1].options["moe"] is True
