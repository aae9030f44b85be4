"""The values that `torch.load(weights_only=True)` reads besides tensors."""

from __future__ import annotations

from typing import Any

from zerotools.core.dtypes import DType
from zerotools.io.torchzip.pickle_values import Ordered, Size, walk

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, Size, DType)


def is_plain(value: Any) -> bool:
    """Return whether a tree holds only numbers, text, bytes, element types and their containers."""
    return all(
        type(part) in _PLAIN or (type(part) is Ordered and part.attributes is None)
        for part in walk(value)
    )
