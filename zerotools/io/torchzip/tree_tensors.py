"""Finds the tensors in a tree, also tensors that torch wrapped in other classes.

`why_unread` recognises tensors with bytes that zerotools cannot copy, by the function that rebuilds
them. A reader refuses such a tensor by its name, because a silently omitted tensor would be a lost
weight. Views with the negative or conjugate bit set are such tensors: the stored values have
another sign than the values of the view.

Source: torch/_utils.py (`_rebuild_*`), torch/_tensor.py (`_reduce_ex_internal`), and
numpy/_core/multiarray.py (`_reconstruct`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.io.torchzip.pickle_globals import LAZY_BITS, value_of_call
from zerotools.io.torchzip.pickle_values import Global, Storage, StoredTensor

WITH_STATE = ("torch._tensor", "_rebuild_from_type_v2")
PARAMETERS = (
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
)
_PLAIN_TYPES = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


def as_tensor(value: Any) -> StoredTensor | None:
    """Return `value` as a `StoredTensor` if it is a plain tensor or a Parameter, with or without
    Python attributes; else None.

    The attributes are not kept: `attributes_of` returns them. For tensor subclasses (such as
    DTensor) the result is None. `why_unread` describes such tensors.
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
            return value_of_call(function, args)
    return None


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the Python attributes of a tensor, which torch saves since 1.12. A plain tensor has no
    attributes.
    """
    if not isinstance(value, Opaque) or (value.module, value.name) != WITH_STATE:
        return {}
    state = value.args[3] if len(value.args) == 4 else None
    if isinstance(state, tuple) and state:  # a class with __slots__ has two dicts
        state = state[0]
    return state if isinstance(state, Mapping) else {}


def is_plain(kind: Any) -> bool:
    """Return whether a class is torch's own class of tensors or of parameters."""
    return isinstance(kind, Global) and (kind.module, kind.name) in _PLAIN_TYPES


_REBUILT = {
    "_rebuild_sparse_tensor": "a sparse tensor; save it dense, with to_dense()",
    "_rebuild_sparse_csr_tensor": "a sparse tensor; save it dense, with to_dense()",
    "_rebuild_nested_tensor": "a nested tensor; save each of its parts, as unbind() gives them",
    "_rebuild_meta_tensor_no_storage": "a tensor on the meta device, which has no values",
    "_rebuild_qtensor": "a quantized tensor; save it plain, with dequantize()",
}
_BITS = {
    "neg": "a view with the negative bit set; save it with resolve_neg()",
    "conj": "a view with the conjugate bit set; save it with resolve_conj()",
}
_VIEWS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")
_ARRAYS = ("_reconstruct", "_frombuffer")
_WRAPPED = 4


def why_unread(value: Any) -> str | None:
    """If `value` has tensor data that `as_tensor` cannot return, return its kind and the action to
    take, as text. Return None for all other values.

    The parts of distributed tensors are such values. A reader that supports these parts must
    recognise them before it calls this function.
    """
    for _ in range(_WRAPPED):
        if isinstance(value, Storage):
            return "a storage without a tensor; save a tensor that uses it"
        if not isinstance(value, Opaque):
            return None
        inner = _inside(value)
        if inner is None:
            return _named(value)
        value = inner
    return "a parameter within parameters; save it detached"


def _inside(value: Opaque) -> Any:
    """Return the value that is inside an object of a torch class, such as a Parameter; None for
    other objects.
    """
    named = (value.module, value.name)
    if named in PARAMETERS and value.called and value.args:
        return value.args[0]
    if named == WITH_STATE and value.called and len(value.args) == 4:
        function, kind, args, _ = value.args
        if is_plain(kind) and isinstance(function, Global) and isinstance(args, tuple):
            return value_of_call(function, args)
    return None


def _named(value: Opaque) -> str | None:
    if value.module.partition(".")[0] == "numpy":
        is_array = value.called and value.name in _ARRAYS
        return "a numpy array; save it as a tensor, with torch.from_numpy" if is_array else None
    if _is_module(value):
        return f"a pickled module, {value.module}.{value.name}; save its state_dict()"
    if value.module == "torch.nn.parameter" and value.name.startswith("Uninitialized"):
        return "a lazy parameter without values; save it after the first forward pass"
    if (value.module, value.name) == WITH_STATE and len(value.args) == 4:
        return f"a {value.args[1]!s:.200}, a kind of tensor that zerotools does not know"
    if value.module != "torch._utils" or not value.name.startswith("_rebuild_"):
        return None
    if value.name in _VIEWS and value.args and isinstance(value.args[-1], dict):
        return next((_BITS[bit] for bit in LAZY_BITS if value.args[-1].get(bit)), None)
    return _REBUILT.get(value.name, f"a tensor that torch makes with {value.name:.80}")


def _is_module(value: Opaque) -> bool:
    return isinstance(value.state, dict) and "_parameters" in value.state
