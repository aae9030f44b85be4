"""What a value in a torch file is: a whole tensor, one rank's pieces of a larger one, or none."""

from __future__ import annotations

from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import Unsupported
from zerotools.formats.torchfile import dtensor, shardedtensor
from zerotools.formats.torchfile.pieces import DTENSOR, SHARDED, Pieces
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.values import Global

_WITH_STATE = ("torch._tensor", "_rebuild_from_type_v2")
_PARAMETERS = (
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
)
_DISTRIBUTED = "torch.distributed."


def pieces_of(value: Any) -> Pieces | None:
    """The tensor that `value` is, whole or in part; None where it is none.

    Raises:
        BadFile: a distributed tensor whose parts contradict each other.
        Unsupported: one that is not cut into blocks, or of an unknown class.
    """
    plain = as_tensor(value)
    if plain is not None:
        return Pieces(plain.dtype, plain.shape, ((Box.whole(plain.shape), plain),))
    for _ in range(3):
        if not isinstance(value, Opaque) or not value.called:
            return None
        if (value.module, value.name) not in _PARAMETERS or not value.args:
            break
        value = value.args[0]
    if (value.module, value.name) != _WITH_STATE or len(value.args) != 4:
        return None
    _, kind, _, state = value.args
    return _of_class(kind, state)


def _of_class(kind: Any, state: Any) -> Pieces:
    """A tensor of another class than torch's own."""
    if isinstance(kind, Global) and kind.module.startswith(_DISTRIBUTED):
        if kind.name == DTENSOR:
            return dtensor.pieces(state)
        if kind.name == SHARDED:
            return shardedtensor.pieces(state)
    raise Unsupported(f"a {kind!s:.200}, a kind of tensor that zerotools does not know")
