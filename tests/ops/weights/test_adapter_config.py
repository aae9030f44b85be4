from __future__ import annotations

import json
from typing import Any

import pytest

from zerotools.core.errors import BadFile
from zerotools.ops.weights.adapter_config import scale_of


@pytest.mark.parametrize(
    ("r", "alpha"),
    [
        *((8, bad) for bad in ("NaN", "Infinity", "-Infinity", "1e999", "true", '"16"', "null")),
        *((bad, "16") for bad in (0, -1, "NaN", "Infinity", "true", "null")),
    ],
)
def test_numbers_that_no_adapter_is_scaled_by_are_refused(r: Any, alpha: str) -> None:
    text = f'{{"r": {r}, "lora_alpha": {alpha}}}'
    with pytest.raises(
        BadFile, match=r"has r .* and lora_alpha .* for q_proj: they must be finite"
    ):
        scale_of(json.loads(text), "q_proj")


def test_a_pattern_may_say_another_number() -> None:
    config = json.loads('{"r": 8, "lora_alpha": 16, "alpha_pattern": {"v_proj": NaN}}')
    assert scale_of(config, "layers.0.q_proj") == 2
    with pytest.raises(BadFile, match=r"lora_alpha nan for layers\.0\.v_proj"):
        scale_of(config, "layers.0.v_proj")
