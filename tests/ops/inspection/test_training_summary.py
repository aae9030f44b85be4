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
from zerotools.ops.inspection.training_summary import json_value

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
        "name": "AdamW",
        "class": None,
        "states": ["exp_avg", "exp_avg_sq", "step"],
    }
    assert [group["elements"] for group in found["param_groups"]] == [7040, 48]
    assert found["param_groups"][0]["hyperparameters"]["betas"] == [0.9, 0.95]


def test_torchtitan_has_one_group_and_a_buffer_that_nothing_froze() -> None:
    found = described(GOLDEN / "torch-2.13.0/fsdp2-torchtitan-w2/checkpoint")
    counts = [f"{kind}parameters" for kind in ("", "trainable_", "frozen_")]
    assert [found[name] for name in counts] == [105, 105, 0]
    assert found["optimizer"] == {
        "name": "AdamW",
        "class": None,
        "states": ["exp_avg", "exp_avg_sq", "step"],
    }
    (group,) = found["param_groups"]
    assert (group["params"], group["elements"]) == (["embed.weight", "norm.weight"], 105)
    assert group["hyperparameters"]["betas"] == [0.9, 0.999]
    assert (found["step"], found["lr_scheduler"]) == (4, {"last_epoch": 4})


def test_groups_are_in_the_order_of_the_optimizer_under_round_robin() -> None:
    found = described(DEEPSPEED / "z1-fp32-w3-round-robin" / "checkpoint")
    (group,) = found["param_groups"]
    assert group["params"][:5] == [f"parts.{number}.weight" for number in range(5)]


def test_torch_numbers_stand_where_the_file_has_no_names() -> None:
    found = described(GOLDEN / "torch-2.13.0/training-file/checkpoint")
    groups = [(group["params"], group["elements"]) for group in found["param_groups"]]
    assert groups == [([0, 1, 2, 3], None), ([4, 5, 6], None)]


@pytest.mark.parametrize("case", ["torch-2.13.0/fsdp1-sharded-bin-w2", "torch-2.13.0-sections/app"])
def test_nothing_is_called_frozen_where_it_may_be_a_buffer(case: str) -> None:
    path = GOLDEN / case
    found = described(path / "checkpoint" if (path / "checkpoint").is_dir() else path)
    assert found["trainable_parameters"] < found["parameters"]
    assert found["frozen_parameters"] is None


def test_weights_alone_say_nothing_of_training(tmp_path: Path) -> None:
    path = model(tmp_path / "in", {"w": noise(3).astype(BF16)})
    found = described(path)
    assert found["weights_dtype"] == "bfloat16"
    unknown = ("trainable_parameters", "masters_dtype", "optimizer", "param_groups", "lr_scheduler")
    assert [found[name] for name in unknown] == [None] * 5


def test_values_that_json_lacks() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    foreign = Opaque("some.module", "Thing")
    assert json_value({1: (float("nan"), float("inf"), True), "x": foreign, "d": FLOAT16}) == {
        "1": ["nan", "inf", True],
        "x": "<some.module.Thing>",
        "d": "float16",
    }
    assert json.dumps(json_value(cycle)).count("[") == 8


def test_parts_that_a_pickle_shares_do_not_multiply() -> None:
    tree: Any = 1.0
    for _ in range(8):
        tree = [tree] * 100
    assert len(json.dumps(json_value(tree))) < 2**24
