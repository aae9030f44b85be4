"""What is said of a checkpoint of another program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.ops.foreign.made import ADAM, SHAPES, made
from zerotools.core.dtypes import BFLOAT16
from zerotools.ops.foreign.check import FoundState
from zerotools.ops.foreign.notes import JobOptimizer, differences, unknown

SAME = JobOptimizer(
    lr=1e-3, weight_decay=0.01, decayed=frozenset(SHAPES), betas=(0.9, 0.999), eps=1e-8
)
STATE = FoundState("adamw")


def said(job: JobOptimizer = SAME, state: FoundState = STATE, **changes: Any) -> list[str]:
    return list(differences(made(**changes), state, job, "fp32"))


def test_what_no_file_says_is_said() -> None:
    lines = list(unknown(made()))
    assert "at step 5; it does not record the order of the data" in lines[0]
    assert "seeds it from seed and step 5" in lines[1]


def test_the_same_hyperparameters_leave_the_learning_rate_to_be_said() -> None:
    [line] = said()
    assert line == (
        "the learning rate is that of the job's schedule after 5 steps, 0.001: its last one was "
        "0.001"
    )
    [line] = said(replace(SAME, lr=None), lr_scheduler={"last_epoch": 5})
    assert line.endswith("after 5 steps: its last one was 0.001, and its scheduler is not followed")


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
