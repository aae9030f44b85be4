"""What a job cannot go on from is refused in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.ops.resume_from_other_program.made import ADAM, OPTIONS, SHAPES, WANTED, made
from zerotools.core.dtypes import BFLOAT16
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup
from zerotools.ops.resume_from_other_program.check_job_fits import (
    FoundState,
    JobOptimizer,
    check_for_deepspeed,
    check_state,
    check_weights,
    optimizer_differences,
    unknown_values,
    weights_of,
)
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel

SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0, "nesterov": False, "weight_decay": 0.0}


def test_the_same_model_and_optimizer_are_taken() -> None:
    run = made()
    check_weights(run, WANTED)
    found = check_state(run, WANTED, "adamw")
    assert (found.kind, found.fresh) == ("adamw", ())
    assert set(weights_of(run)) == set(SHAPES)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (
            {**SHAPES, "embed.weight": (9, 4)},
            r"embed.weight has shape \[9, 4\] there, but shape \[8, 4\]",
        ),
        ({"norm.weight": (4,), "head.weight": (8, 4)}, "it lacks embed.weight; name a checkpoint"),
        (
            {**SHAPES, "a": (1,), "b": (1,), "c": (1,), "d": (1,)},
            "it has a, b, c and 1 more, which the job's model does not have",
        ),
        (
            {"embed": (8, 4), "norm.weight": (4,), "head.weight": (8, 4)},
            "it lacks embed.weight, and it has embed, which",
        ),
    ],
)
def test_another_model_is_refused_with_names_and_both_shapes(
    shapes: dict[str, tuple[int, ...]], said: str
) -> None:
    with pytest.raises(BadRequest, match=f"resume_from = /elsewhere: .*{said}"):
        check_weights(made(shapes), WANTED)


def test_a_buffer_of_the_model_is_needed_too() -> None:
    wanted = WantedModel(SHAPES, {"seen": (3,)}, {})
    with pytest.raises(BadRequest, match="it lacks seen"):
        check_weights(made(), wanted)
    check_weights(made({**SHAPES, "seen": (3,)}), wanted)


@pytest.mark.parametrize(
    ("run", "job", "said"),
    [
        (made(options=SGD, roles=("momentum_buffer",)), "adamw", 'set train.optimizer = "sgd"'),
        (made(), "sgd", 'set train.optimizer = "adamw"'),
        (
            made(options={**ADAM, "decoupled_weight_decay": False}),
            "adamw",
            'was trained with adam; set train.optimizer = "adam"',
        ),
        (made(options={"lr": 1}, roles=("exp_avg",), optimizer="Lion"), "adamw", "with Lion"),
        (made(options={"lr": 1}, roles=("sum",)), "adamw", "an optimizer that keeps sum"),
        (
            made(roles=("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), options={**ADAM}),
            "adamw",
            "stores exp_avg, exp_avg_sq, max_exp_avg_sq for embed.weight",
        ),
        (made(options={**ADAM, "maximize": True}), "adamw", "has maximize = True"),
        (
            made(options={**SGD, "nesterov": True}, roles=("momentum_buffer",)),
            "sgd",
            "has nesterov = True",
        ),
    ],
)
def test_another_optimizer_is_refused(run: Any, job: str, said: str) -> None:
    with pytest.raises(BadRequest) as error:
        check_state(run, WANTED, job)
    assert said in str(error.value)


def test_adam_without_weight_decay_is_adamw_without_weight_decay() -> None:
    options = {**ADAM, "decoupled_weight_decay": False, "weight_decay": 0.0}
    assert check_state(made(options=options), WANTED, "adamw").kind == "adamw"
    assert check_state(made(options=options), WANTED, "adam").kind == "adam"


def test_state_of_adam_with_a_decay_is_for_adam() -> None:
    options = {**ADAM, "decoupled_weight_decay": False}
    assert check_state(made(options=options), WANTED, "adam").kind == "adam"


def test_what_was_frozen_there_cannot_be_gone_on_with() -> None:
    run = made(trained=("embed.weight", "norm.weight"))
    with pytest.raises(BadRequest, match=r"did not train head.weight, which the job trains"):
        check_state(run, WANTED, "adamw")


def test_a_parameter_that_was_never_updated_begins_without_state() -> None:
    run = made(trained=("embed.weight", "norm.weight"), groups=(ParamGroup(tuple(SHAPES), ADAM),))
    assert check_state(run, WANTED, "adamw").fresh == ("head.weight",)


def test_state_of_another_shape_is_refused() -> None:
    wanted = WantedModel({**SHAPES, "norm.weight": (5,)}, {}, {})
    with pytest.raises(
        BadRequest, match=r"norm.weight \(exp_avg\) has shape \[4\] there, but shape \[5\]"
    ):
        check_state(made(options=OPTIONS), wanted, "adamw")


def of_deepspeed(**changes: Any) -> ForeignRun:
    run = made()
    values: dict[str, Any] = {"stage": 2, "world_size": 4, "tag": "global_step5", **changes}
    origin = replace(run.checkpoint.origin, **values)
    return replace(run, checkpoint=replace(run.checkpoint, origin=origin))


@pytest.mark.parametrize(
    ("run", "groups", "said"),
    [
        (
            made(),
            [tuple(SHAPES)],
            "DeepSpeed loads only its files of stages 1 to 3; set engine",
        ),
        (of_deepspeed(stage=0), [tuple(SHAPES)], "its files of stages 1 to 3"),
        (
            of_deepspeed(world_size=8),
            [tuple(SHAPES)],
            "saved at world size 8 and stage 2, but the job has world size 4 and stage 2",
        ),
        (of_deepspeed(stage=3), [tuple(SHAPES)], "--world-size 4 --stage 2, or set engine"),
        (
            of_deepspeed(),
            [tuple(SHAPES)[::-1]],
            "have 3 parameters, but those of the job have 3, or",
        ),
        (
            of_deepspeed(),
            [("embed.weight",), ("norm.weight",)],
            "but those of the job have 1 and 1",
        ),
    ],
)
def test_what_deepspeed_does_not_load_is_refused(run: Any, groups: Any, said: str) -> None:
    with pytest.raises(BadRequest) as error:
        check_for_deepspeed(run, 2, 4, groups)
    assert said in str(error.value)


def test_deepspeeds_own_files_are_taken() -> None:
    check_for_deepspeed(of_deepspeed(), 2, 4, [tuple(SHAPES)])


SAME = JobOptimizer(
    lr=1e-3, weight_decay=0.01, decayed=frozenset(SHAPES), betas=(0.9, 0.999), eps=1e-8
)
STATE = FoundState("adamw")


def said(job: JobOptimizer = SAME, state: FoundState = STATE, **changes: Any) -> list[str]:
    return list(optimizer_differences(made(**changes), state, job, "fp32"))


def test_what_no_file_says_is_said() -> None:
    lines = list(unknown_values(made()))
    assert "at step 5; it does not record the order of the data" in lines[0]
    assert "seeds it from seed and step 5" in lines[1]


def test_the_same_hyperparameters_leave_the_learning_rate_to_be_said() -> None:
    [line] = said()
    assert line == (
        "the learning rate is that of the job's schedule after 5 steps, 0.001: in the checkpoint "
        "it was 0.001"
    )
    [line] = said(replace(SAME, lr=None), lr_scheduler={"last_epoch": 5})
    assert line.endswith(
        "after 5 steps: in the checkpoint it was 0.001, and its scheduler is not used"
    )


def test_what_differs_is_said_with_both_numbers() -> None:
    job = replace(SAME, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, decayed=frozenset(SHAPES))
    _, betas, eps, decay = said(job)
    assert betas == "train.betas is 0.9, 0.95 and was 0.9, 0.999 in /elsewhere"
    assert eps == "train.eps is 1e-06 and was 1e-08 in /elsewhere"
    assert decay == (
        "weight decay differs for 3 parameters: embed.weight has 0.1 and had 0.01 in /elsewhere"
    )


def test_weights_in_16_bits_another_precision_and_empty_state_are_said() -> None:
    lines = said(state=FoundState("adamw", ("norm.weight",)), dtype=BFLOAT16, precision=BFLOAT16)
    assert any("1 parameter had no update yet" in line for line in lines)
    assert any("3 weights of /elsewhere are in 16 bits, without fp32 masters" in x for x in lines)
    assert "train.precision is fp32, and /elsewhere was trained in bf16" in lines


def test_a_list_is_the_tuple_that_it_was() -> None:
    assert len(said(options={**ADAM, "betas": [0.9, 0.999]})) == 1
