"""torch's optimizers as their param groups tell: which class, which options, which numbers.

The defaults are those of torch 2.13's constructors, in the order of `param_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.core.training import Group, Scalar
from zerotools.io.scalars import read_scalar

WEIGHT_ROLES = ("param", "param16", "buffer")
STATE_ROLE = "state"

_ADAM = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": False,
}
_SGD = {
    "lr": 1e-3,
    "momentum": 0,
    "dampening": 0,
    "weight_decay": 0,
    "nesterov": False,
    "maximize": False,
    "foreach": None,
    "differentiable": False,
    "fused": None,
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "AdamW": {**_ADAM, "weight_decay": 1e-2, "decoupled_weight_decay": True},
        "Adam": _ADAM,
        "SGD": _SGD,
    }
)


def optimizer_of(groups: Iterable[Group]) -> str | None:
    """The class of torch's whose options the groups have, as far as they tell one from another."""
    options = next((group.options for group in groups), {})
    if "betas" in options and "amsgrad" in options:
        decoupled = options.get("decoupled_weight_decay")
        return {True: "AdamW", False: "Adam"}.get(decoupled) if type(decoupled) is bool else None
    return "SGD" if {"momentum", "dampening", "nesterov"} <= options.keys() else None


def scalars_of(checkpoint: Checkpoint) -> dict[Key, Scalar]:
    """The numbers of optimizer state that are 0-d tensors. What a 0-d parameter has of its own
    shape is state like any other's; its `step` is a number.

    Raises:
        BadFile: one is in no file, or its file ends before it.
    """
    found = {}
    for key, tensor in checkpoint.tensors.items():
        if tensor.shape or key.role in (*WEIGHT_ROLES, STATE_ROLE):
            continue
        weight = checkpoint.tensors.get(Key(key.name, "param"))
        if key.role == "step" or weight is None or weight.shape:
            found[key] = read_scalar(checkpoint.root, tensor)
    return found


def weights_dtype(checkpoint: Checkpoint) -> DType | None:
    """The floating-point type that most bytes of the weights are in."""
    sizes: dict[DType, int] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.role == "param" and tensor.dtype.is_float:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def trained_precision(checkpoint: Checkpoint) -> DType | None:
    """The type that a model computes with whose optimizer updates these weights: that of 16-bit
    ones. Of fp32 ones nothing says whether they are cast for that."""
    dtype = weights_dtype(checkpoint)
    return dtype if dtype in (FLOAT16, BFLOAT16) else None
