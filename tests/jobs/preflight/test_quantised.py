"""Which weights are refused as quantised, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerotools.core.dtypes import BFLOAT16, DType, named
from zerotools.jobs.preflight.quantised import quantised

GPTQ = {"quantization_config": {"quant_method": "gptq"}}
WHERE = Path("m/model.safetensors")


@pytest.mark.parametrize(
    ("name", "dtype", "config", "is_refused"),
    [
        ("a.weight", BFLOAT16, GPTQ, False),
        ("a.weight", named("uint8"), {}, True),
        ("a.scale", named("float8_e4m3fn"), {}, True),
        ("position_ids", named("int64"), {"quantization_config": None}, False),
        ("a.qweight", named("int32"), GPTQ, True),
        ("a.qweight", named("int32"), {"quantization_config": "?"}, False),
    ],
)
def test_what_is_refused(name: str, dtype: DType, config: dict[str, Any], is_refused: bool) -> None:
    sentence = quantised([(WHERE, "norm.weight", BFLOAT16), (WHERE, name, dtype)], config)
    assert (sentence is not None) == is_refused
    if sentence is not None:
        assert sentence.startswith(f"model.path: {WHERE}: {name} is {dtype}: quantised weights")
        assert ("(method gptq in its config.json)" in sentence) == (config == GPTQ)
