"""What two checkpoints say of their runs beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.checkpoint import Checkpoint, Key, Opaque, Origin
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from zerotools.core.errors import BadFile
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.ops.comparison.diff_result import RunComparison, RunDifference
from zerotools.ops.comparison.pair_tensors import Side
from zerotools.ops.comparison.training_and_config_diff import compare_runs

ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
RUN = TrainingState(
    groups=(ParamGroup(("a", "b"), ADAM), ParamGroup(("c",), {**ADAM, "weight_decay": 0.0})),
    scalars={Key(name, "step"): Scalar(7.0, FLOAT32) for name in "abc"},
    precision=BFLOAT16,
    optimizer="AdamW",
    steps=7,
    skipped=0,
    samples=28,
    lr_scheduler={"last_epoch": 7, "base_lrs": [1e-3]},
    ds_config={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    client={"epoch": 1},
)


def side(config: Path | None = None, **names: Any) -> Side:
    root = Path("/nowhere")
    sidecars = {} if config is None else {"config.json": config}
    origin = Origin("test", root, step=names.pop("step", None))
    checkpoint = Checkpoint(root, {}, origin, model_sidecars=sidecars, **names)
    return Side(checkpoint, lambda name: name.removeprefix("module."))


def compare(ours: TrainingState, theirs: TrainingState, **names: Any) -> RunComparison:
    return compare_runs(side(), side(**names), ours, theirs, set())


def points(found: RunComparison) -> list[tuple[str, Any, Any, int | None]]:
    return [(each.what, each.a, each.b, each.params) for each in found.differences]


def test_a_run_is_equal_to_itself() -> None:
    assert compare(RUN, RUN) == RunComparison()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"steps": 9}, ("step", 7, 9, None)),
        ({"skipped": 2}, ("skipped steps", 0, 2, None)),
        ({"samples": 36}, ("samples", 28, 36, None)),
        ({"precision": FLOAT16}, ("precision", "bfloat16", "float16", None)),
        ({"optimizer": "Lion"}, ("optimizer", "AdamW", "Lion", None)),
        ({"client": {"epoch": 2}}, ("client.epoch", 1, 2, None)),
        (
            {"ds_config": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}},
            ("ds_config.zero_optimization.stage", 2, 3, None),
        ),
        (
            {"lr_scheduler": {"last_epoch": 7, "base_lrs": [2e-3]}},
            ("lr scheduler.base_lrs", [1e-3], [2e-3], None),
        ),
    ],
)
def test_a_point_that_differs(
    change: Mapping[str, Any], expected: tuple[str, Any, Any, int | None]
) -> None:
    assert points(compare(RUN, replace(RUN, **change))) == [expected]


def test_options_are_compared_for_each_parameter_whatever_the_groups() -> None:
    other = replace(
        RUN,
        groups=(
            ParamGroup(("c",), {**ADAM, "lr": 2e-3, "weight_decay": 0.0}),
            ParamGroup(("module.b", "module.a"), {**ADAM, "lr": 2e-3, "fused": True}),
        ),
    )
    found = compare(RUN, other)
    assert points(found) == [("lr", 1e-3, 2e-3, 3)]
    assert found.only_b == ("fused",)
    merged = replace(RUN, groups=(ParamGroup(("a", "b", "c"), ADAM),))
    assert points(compare(RUN, merged)) == [
        ("param groups", 2, 1, None),
        ("weight_decay", 0.0, 0.1, 1),
    ]


def test_groups_without_names_are_compared_in_their_order() -> None:
    nameless = replace(
        RUN, groups=tuple(replace(g, params=tuple(f"{n}?" for n in g.params)) for g in RUN.groups)
    )
    assert compare(RUN, nameless).differences == ()
    other = [replace(nameless.groups[0], options={**ADAM, "lr": 5.0}), nameless.groups[1]]
    assert points(compare(RUN, replace(nameless, groups=tuple(other)))) == [("lr", 1e-3, 5.0, 2)]


def test_numbers_of_the_optimizer_are_counted_by_their_values() -> None:
    scalars = {**RUN.scalars, Key("a", "step"): Scalar(9), Key("b", "step"): Scalar(9.0)}
    assert points(compare(RUN, replace(RUN, scalars=scalars))) == [("step", 7.0, 9.0, 2)] or (
        points(compare(RUN, replace(RUN, scalars=scalars))) == [("step", 7.0, 9, 2)]
    )
    compared = {Key(name, "step") for name in "abc"}
    other = replace(RUN, scalars=scalars)
    assert compare_runs(side(), side(), RUN, other, compared) == RunComparison()


def test_what_one_alone_says_is_no_difference() -> None:
    found = compare(RUN, TrainingState())
    assert found.differences == found.only_b == ()
    assert found.only_a == (
        "step",
        "skipped steps",
        "samples",
        "precision",
        "optimizer",
        "lr scheduler",
        "client",
        "ds_config",
        "param groups",
    )
    said = compare(TrainingState(), RUN)
    assert (said.only_a, said.only_b) == ((), found.only_a)


def test_a_scaler_that_does_not_scale_is_none() -> None:
    idle = replace(RUN, loss_scaler=LossScale(1.0, False, saved_as="x.LossScaler"))
    assert compare(RUN, idle) == RunComparison()
    ours, theirs = (
        replace(RUN, loss_scaler=LossScale(scale, True, {"cur_iter": 3}, saved_as=name))
        for scale, name in ((8.0, "x.DynamicLossScaler"), (4.0, "y.DynamicLossScaler"))
    )
    assert points(compare(ours, theirs)) == [("loss scaler.cur_scale", 8.0, 4.0, None)]


def test_the_step_may_be_known_from_the_name_alone() -> None:
    assert points(compare(RUN, replace(RUN, steps=None), step=9)) == [("step", 7, 9, None)]


def test_objects_are_compared_as_they_are_described() -> None:
    trees = [replace(RUN, client={"rng": Opaque("numpy", name)}) for name in ("A", "A", "B")]
    assert compare(trees[0], trees[1]) == RunComparison()
    assert points(compare(trees[0], trees[2])) == [("client.rng", "<numpy.A>", "<numpy.B>", None)]


def test_config_json(tmp_path: Path) -> None:
    texts = (
        {"hidden_size": 8, "transformers_version": "4.1", "rope": {"theta": 1}},
        {"hidden_size": 9, "transformers_version": "4.2", "rope": {"theta": 1}},
    )
    sides = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(text))
        sides.append(side(path))
    found = compare_runs(sides[0], sides[1], TrainingState(), TrainingState(), set())
    assert found.differences == (RunDifference("config.json.hidden_size", 8, 9),)
    for number, key in enumerate(("dtype", "torch_dtype")):
        tree = {"hidden_size": 8, key: f"type{number}", "text_config": {"dtype": number}}
        (tmp_path / f"{number}.json").write_text(json.dumps(tree))
    runs = *sides, TrainingState(), TrainingState(), set[Key]()
    assert compare_runs(*runs).differences
    assert compare_runs(*runs, is_of_sums=True) == RunComparison()
    (tmp_path / "1.json").write_text("{")
    with pytest.raises(BadFile, match=r"1\.json is not valid JSON"):
        compare_runs(sides[0], sides[1], TrainingState(), TrainingState(), set())
