"""What `inspect` says of real runs, compared with what the live programs said of themselves."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import GOLDEN, JOB
from tests.ops.exports import BF16, model, noise
from zerotools import formats
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import FLOAT16
from zerotools.ops.inspection.inspect import inspect, to_json
from zerotools.ops.inspection.run_summary import plain, training_of

DEEPSPEED = GOLDEN / "deepspeed-0.19.8"
# One model-parallel rank, ZeRO 1 to 3, optimizer groups with names.
CASES = sorted(
    path.name
    for path in DEEPSPEED.iterdir()
    if path.name.startswith(("z1-", "z2-", "z3-", "hf-trainer-", "bf16-optimizer-"))
)


def described(path: Path) -> dict[str, Any]:
    described = to_json(inspect(formats.read(path)))
    json.dumps(described, allow_nan=False)
    return described


@pytest.mark.parametrize("case", CASES)
def test_deepspeed_runs(case: str) -> None:
    truth = json.loads((DEEPSPEED / case / "truth.json").read_text())
    found = described(DEEPSPEED / case / "checkpoint")
    sizes = {name: prod(shape) for name, shape in truth["shapes"].items()}
    trained = {name for group in truth["param_groups"] for name in group["names"]} & sizes.keys()
    assert found["trainable_parameters"] == sum(sizes[name] for name in trained)
    if not truth["exclude_frozen_parameters"]:
        assert found["frozen_parameters"] == sum(sizes[name] for name in truth["frozen"])
    assert found["skipped_steps"] == truth["skipped_steps"]
    assert found["step"] == truth["global_steps"]
    assert found["optimizer"]["class"] == truth["optimizer_class"]
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    assert found["weights_dtype"] == names[truth["dtype"]]
    if found["loss_scaler"] is not None:
        assert found["loss_scaler"]["cur_scale"] == truth["loss_scale"]
    groups = [group for group in truth["param_groups"] if group["names"]]
    saved = [group for group in found["param_groups"] if group["params"]]
    assert len(saved) == len(groups)
    for group, wanted in zip(saved, groups, strict=True):
        # Elastic files hold the state of each parameter, and no hyper-parameters.
        lr = [] if "elastic" in case else [wanted["lr"]]
        assert [v for k, v in group["hyperparameters"].items() if k == "lr"] == lr


def test_a_job() -> None:
    found = described(JOB)
    assert (found["trainable_parameters"], found["frozen_parameters"]) == (7088, 0)
    assert found["shared_parameters"] == 4096
    assert (found["weights_dtype"], found["masters_dtype"]) == ("bfloat16", "float32")
    assert found["optimizer"] == {
        "name": "adamw",
        "class": None,
        "states": ["exp_avg", "exp_avg_sq", "step"],
    }
    assert [group["elements"] for group in found["param_groups"]] == [7040, 48]
    assert found["param_groups"][0]["hyperparameters"]["betas"] == [0.9, 0.95]


def test_dcp_keys_name_what_was_trained() -> None:
    path = GOLDEN / "torch-2.13.0/fsdp2-torchtitan-w2/checkpoint"
    training = training_of(formats.read(path))
    assert training.trainable is not None
    assert training.param_groups is None


def test_weights_alone_say_nothing_of_training(tmp_path: Path) -> None:
    path = model(tmp_path / "in", {"w": noise(3).astype(BF16)})
    training = training_of(formats.read(path))
    assert training.weights_dtype == "bfloat16"
    assert (training.trainable, training.masters_dtype, training.optimizer) == (None, None, None)


def test_values_that_json_lacks() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    foreign = Opaque("some.module", "Thing")
    assert plain({1: (float("nan"), float("inf"), True), "x": foreign, "d": FLOAT16}) == {
        "1": ["nan", "inf", True],
        "x": "<some.module.Thing>",
        "d": "float16",
    }
    assert json.dumps(plain(cycle)).count("[") == 8
