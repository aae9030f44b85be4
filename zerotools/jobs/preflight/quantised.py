"""Weights that cannot be trained, because they are stored in fewer bits than are computed with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType

TRAINABLE = (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)


def quantised(tensors: Iterable[tuple[Path, str, DType]], config: Mapping[str, Any]) -> str | None:
    """Return the refusal of the first of `tensors` (file, name, type) that is quantised, or None.

    An integer may be a count or a table. It is part of a weight if its name shows it, or if the
    model's `config` names a method: GPTQ calls them `qweight`, gpt-oss `gate_up_proj_blocks`.
    """
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    for path, name, dtype in tensors:
        narrow = dtype.is_float or name.endswith(".weight") or method is not None
        if narrow and dtype not in TRAINABLE:
            stated = f" (method {method} in its config.json)" if isinstance(method, str) else ""
            return (
                f"model.path: {path}: {name} is {dtype}: quantised weights cannot be trained; take "
                f"the model in 16 or 32 bits{stated}"
            )
    return None
