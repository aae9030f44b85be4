"""The tensors in a tree, also those that torch wrapped in other classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.io.torchzip.globals import call
from zerotools.io.torchzip.pickle_values import Global, StoredTensor

WITH_STATE = ("torch._tensor", "_rebuild_from_type_v2")
PARAMETERS = (
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
)
_PLAIN_TYPES = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


def as_tensor(value: Any) -> StoredTensor | None:
    """Return `value` as a tensor: plain, a Parameter, or one with Python attributes; else None.

    Attributes are not kept: `attributes_of` has them. Tensor subclasses (such as DTensor) are not
    plain tensors: None. `unread` describes other tensors.
    """
    for _ in range(3):
        if isinstance(value, StoredTensor):
            return value
        if not isinstance(value, Opaque) or not value.called:
            return None
        value = _unwrapped(value)
    return None


def _unwrapped(value: Opaque) -> Any:
    named = (value.module, value.name)
    if named in PARAMETERS and value.args:
        return value.args[0]
    if named == WITH_STATE and len(value.args) == 4:
        function, kind, args, _ = value.args
        if isinstance(function, Global) and is_plain(kind) and isinstance(args, tuple):
            return call(function, args)
    return None


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the Python attributes of a tensor, which torch saves since 1.12; of plain tensors
    none."""
    if not isinstance(value, Opaque) or (value.module, value.name) != WITH_STATE:
        return {}
    state = value.args[3] if len(value.args) == 4 else None
    if isinstance(state, tuple) and state:  # a class with __slots__ has two dicts
        state = state[0]
    return state if isinstance(state, Mapping) else {}


def is_plain(kind: Any) -> bool:
    """Return whether a class is the tensor or parameter class of torch."""
    return isinstance(kind, Global) and (kind.module, kind.name) in _PLAIN_TYPES
