"""Options of param groups from DeepSpeed configurations."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.formats.deepspeed.foreign_param_groups import options_from, steps_are_numbers


def config(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("configured", "decoupled", "decay"),
    [
        (config("AdamW"), True, 0.0),
        (config("AdamW", torch_adam=True), True, 0.01),
        (config("Adam"), True, 0.0),
        (config("Adam", adam_w_mode=False), False, 0.0),
        (config("Adam", torch_adam=True, adam_w_mode=False), False, 0),
        (config("AdamW", weight_decay=0.3), True, 0.3),
    ],
)
def test_adam_decays_as_deepspeed_has_it(
    configured: dict[str, Any], decoupled: bool, decay: float
) -> None:
    options = options_from(configured)
    assert options is not None
    assert (options["decoupled_weight_decay"], options["weight_decay"]) == (decoupled, decay)
    assert not {"torch_adam", "adam_w_mode"} & options.keys()


def test_what_a_configuration_does_not_say_is_not_guessed() -> None:
    for configured in ({}, config("Muon", lr=1), config("AdamW", lr="auto"), {"optimizer": None}):
        assert options_from(configured) is None
    assert options_from(config("AdamW", betas=[0.8, 0.9]))["betas"] == (0.8, 0.9)  # type: ignore[index]


def test_deepspeeds_own_kernels_count_in_plain_numbers() -> None:
    assert steps_are_numbers(config("AdamW"))
    assert not steps_are_numbers(config("AdamW", torch_adam=True))
    assert not steps_are_numbers(config("SGD"))
    assert not steps_are_numbers({})
