"""What a configuration says of a run."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.formats.deepspeed.schema.ds_config import masters_type


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"bf16": {"enabled": True}}, FLOAT32),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, BFLOAT16),
        ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, FLOAT16),
        ({"fp16": {"enabled": True, "bf16_master_weights_and_grads": True}}, FLOAT32),
        ({"fp16": "auto"}, FLOAT32),
        (None, FLOAT32),
    ],
)
def test_masters_are_in_fp32_unless_it_says_otherwise(config: Any, dtype: DType) -> None:
    assert masters_type(config) == dtype
