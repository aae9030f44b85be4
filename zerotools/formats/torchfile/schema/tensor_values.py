"""A value in a torch file as a tensor: whole, one rank's pieces of a larger one, or not a
tensor."""

from __future__ import annotations

from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import Unsupported
from zerotools.formats.torchfile.schema import dtensor, sharded_tensor
from zerotools.formats.torchfile.schema.pieces import DTENSOR, SHARDED, PartialTensor
from zerotools.io.torchzip.pickle_values import Global
from zerotools.io.torchzip.tensors import PARAMETERS, WITH_STATE, as_tensor, is_plain

_DISTRIBUTED = "torch.distributed."


def partial_tensor_of(value: Any) -> PartialTensor | None:
    """Return `value` as a tensor, whole or in part, or None if it is not a tensor that is read.

    Raises:
        BadFile: a distributed tensor with parts that contradict each other.
        Unsupported: a tensor that is not cut into blocks, or of an unknown class.
    """
    plain = as_tensor(value)
    if plain is not None:
        return PartialTensor(plain.dtype, plain.shape, ((Box.whole(plain.shape), plain),))
    for _ in range(3):
        if not isinstance(value, Opaque) or not value.called:
            return None
        if (value.module, value.name) not in PARAMETERS or not value.args:
            break
        value = value.args[0]
    if (value.module, value.name) != WITH_STATE or len(value.args) != 4:
        return None
    _, kind, _, state = value.args
    return None if is_plain(kind) else _of_class(kind, state)


def _of_class(kind: Any, state: Any) -> PartialTensor:
    """Return a tensor of a class other than torch's."""
    if isinstance(kind, Global) and kind.module.startswith(_DISTRIBUTED):
        if kind.name == DTENSOR:
            return dtensor.pieces(state)
        if kind.name == SHARDED:
            return sharded_tensor.pieces(state)
    raise Unsupported(f"a {kind!s:.200}, a kind of tensor that zerotools does not know")
