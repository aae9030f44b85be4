from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.ops.weights.run_arguments import padding_of, refuse_another, run_arguments


def test_arguments_are_those_of_the_run_or_none() -> None:
    assert run_arguments(TrainingState(client={"args": {"num_layers": 2}})) == {"num_layers": 2}
    assert run_arguments(TrainingState(client={"args": "--num-layers 2"})) == {}
    assert run_arguments(TrainingState()) == {}


@pytest.mark.parametrize(
    ("arguments", "multiple"),
    [
        ({"make_vocab_size_divisible_by": 8, "tensor_model_parallel_size": 2}, 16),
        ({"make_vocab_size_divisible_by": 128}, 128),
        ({"make_vocab_size_divisible_by": "128"}, None),
        ({"make_vocab_size_divisible_by": 0}, None),
        ({"tensor_model_parallel_size": 2}, None),
    ],
)
def test_padding_is_to_what_the_run_was_told(
    arguments: dict[str, Any], multiple: int | None
) -> None:
    assert padding_of(arguments).get("vocab_multiple") == multiple


def test_what_the_run_was_not_told_is_not_compared() -> None:
    config = {"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 1e4}}
    refuse_another({}, config)
    refuse_another({"num_layers": 2, "rotary_base": 10000, "norm_epsilon": None}, config)
    with pytest.raises(BadRequest, match=r"rope_parameters.rope_theta = 10000, and the run .* 500"):
        refuse_another({"rotary_base": 500}, config)
