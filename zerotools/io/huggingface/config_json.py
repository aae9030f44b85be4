"""config.json with the real type of the weights.

Loaders take the type of the weights from `dtype` (`torch_dtype` before transformers 4.56), so a
config that still has float32 would make them convert the export back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import DType
from zerotools.io.files.json_file import read_json

_KEYS = ("dtype", "torch_dtype")
LARGEST_CONFIG = 2**24


def weights_dtype(tensors: Iterable[Tensor]) -> DType | None:
    """Return the floating-point type of 16 bits or more that most bytes are in."""
    sizes: dict[DType, int] = {}
    for tensor in tensors:
        if tensor.dtype.is_float and tensor.dtype.bits >= 16:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def adapted_config(path: Path, dtype: DType | None) -> bytes | None:
    """Return the file's text with `dtype` in it, or None if it stays unchanged.

    The types of sub-models (`text_config`) change too. A file that is not a JSON object stays.

    Raises:
        BadFile: it is not a regular file, or larger than `LARGEST_CONFIG`.
    """
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict) or dtype is None:
        return None
    _set(config, dtype.name)
    if not any(key in config for key in _KEYS):
        config["torch_dtype"] = dtype.name
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _set(config: dict[str, Any], name: str) -> None:
    for key, value in config.items():
        if key in _KEYS and (value is None or isinstance(value, str)):
            config[key] = name
        elif key.endswith("_config") and isinstance(value, dict) and key != "quantization_config":
            _set(value, name)
