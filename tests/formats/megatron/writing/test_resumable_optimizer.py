"""Which optimizers Megatron goes on with, in which groups, and what is said of the others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.formats.megatron.writing.weights import DENSE, EXPERTS, model, run
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.megatron.writing.resumable_optimizer import (
    DroppedOptimizer,
    WrittenOptimizer,
    written_optimizer,
)

OPTIONS = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = model(EXPERTS, dtype=FLOAT32)


def trained(*groups: dict[str, Any], **steps: float) -> TrainingState:
    """The matrices are in the first group, all others in the last."""
    names = [
        tuple(n for n, t in WEIGHTS.items() if (len(t.shape) > 1) == matrices or len(groups) == 1)
        for matrices in (True, False)
    ]
    scalars = {Key(name, "step"): Scalar(steps.get(name.split(".")[0], 7)) for name in WEIGHTS}
    made = (ParamGroup(n, group) for n, group in zip(names, groups, strict=False))
    return TrainingState(groups=tuple(made), scalars=scalars)


def result(training: TrainingState, *roles: str, apart: bool | None = None) -> Any:
    source = run(WEIGHTS, *(roles or MOMENTS))
    return written_optimizer(source, training, source.tensors, {}, apart=apart)


def kinds(found: WrittenOptimizer) -> list[list[tuple[float, bool]]]:
    return [[(g["wd_mult"], g["is_expert_parallel"]) for g in each] for each in found.optimizers]


def test_groups_are_those_of_megatron() -> None:
    found = result(trained(OPTIONS, {**OPTIONS, "weight_decay": 0.0}))
    assert kinds(found) == [[(1.0, False), (0.0, False)], [(1.0, True)]]
    group = found.optimizers[0][0]
    assert (group["lr"], group["betas"], group["step"]) == (0.01, (0.9, 0.95), 7)
    assert (group["weight_decay"], group["bias_correction"]) == (0.1, True)
    assert not any("no weight decay to norms" in note for note in found.notes)


def test_with_one_expert_parallel_rank_there_is_one_optimizer() -> None:
    found = result(trained(OPTIONS), apart=False)
    assert kinds(found) == [[(1.0, False), (0.0, False)]]
    (said,) = (note for note in found.notes if "no weight decay to norms" in note)
    assert "trained with a weight decay of 0.1" in said


@pytest.mark.parametrize("apart", [None, True, False])
def test_the_groups_of_a_run_of_megatron_stay(apart: bool | None) -> None:
    own = {**OPTIONS, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 0.3}
    groups = (
        {**own, "wd_mult": 1.0, "is_expert_parallel": False},
        {**own, "wd_mult": 0.0, "is_expert_parallel": False},
    )
    found = result(trained(*groups), apart=apart)
    shared = [(1.0, False), (0.0, False)]
    assert kinds(found) == ([shared, [(1.0, True)]] if apart else [shared])
    assert found.optimizers[0][0]["max_lr"] == 0.3


@pytest.mark.parametrize(
    ("training", "roles", "why"),
    [
        (trained(OPTIONS, {**OPTIONS, "lr": 0.02}), MOMENTS, "one lr .* 0.01 and 0.02"),
        (
            trained(OPTIONS, output_layer=8),
            MOMENTS,
            "one step .* is 7 for some weights and 8 for others",
        ),
        (
            trained(OPTIONS, **dict.fromkeys(("embedding", "decoder", "output_layer"), 1.5)),
            MOMENTS,
            "the step is 1.5",
        ),
        (trained(OPTIONS), ("momentum_buffer",), "has the state momentum_buffer"),
        (trained(OPTIONS), ("exp_avg",), "no exp_avg_sq"),
    ],
)
def test_another_optimizer_is_left_out_with_the_reason(
    training: TrainingState, roles: tuple[str, ...], why: str
) -> None:
    found = result(training, *roles)
    assert isinstance(found, DroppedOptimizer)
    assert re.search(why, found.why)


def test_what_is_known_from_nowhere_is_asked_for() -> None:
    with pytest.raises(BadRequest, match="give lr, betas, eps, weight_decay"):
        result(trained())
    with pytest.raises(BadRequest, match="give eps"):
        result(trained({k: v for k, v in OPTIONS.items() if k != "eps"}))


def test_without_state_there_is_no_optimizer() -> None:
    source = run(model(DENSE))
    found = written_optimizer(source, TrainingState(), source.tensors, {})
    assert found == DroppedOptimizer("")
