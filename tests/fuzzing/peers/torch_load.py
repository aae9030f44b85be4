"""torch.load(weights_only=True): torch's own restricted reader of pickles, and its zip reader."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import torch

from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import ZerotoolsError
from zerotools.io.torchzip.pickle_values import Global, Ordered, Size, Storage, StoredTensor

REFUSED = object()

ONLY_OURS = (
    # Ours keeps names, and calls of them, as they are: it imports and calls nothing.
    "GLOBAL",
    "Unsupported global",
    "Unsupported class",
    "Unsupported function",
    "Trying to call reduce for unrecognized function",
    "Can only build Tensor",
    "positional arguments",  # of functions that it calls, and ours keeps as names
    "Can only create new object for",
    "unknown encoding",
    # Ours reads all opcodes of protocols 2 to 5 that make values, and text as UTF-8.
    "Unsupported operand",
    "UnicodeDecodeError",
    # Of storages ours asks the archive when their bytes are wanted, and not before.
    "PytorchStreamReader",
    "record size",
    "Trying to resize storage",
    # What torch checks of the tensors that it makes, and ours where they are moved.
    "a leaf Variable that requires grad",
)
"""Parts of what the peer says where only ours accepts a pickle: why that is right."""

ONLY_THEIRS = (
    "it stops with unused values on its stack",  # torch takes what lies on top
    "is newer than 5",  # torch does not look
    "dimensions and",  # a tensor with fewer strides than dimensions, which torch makes
)
"""Parts of what ours says where only the peer accepts a pickle."""


def compare(
    archive: bytes, storages: Sequence[bytes], error: ZerotoolsError | None, tree: Any
) -> None:
    """Ours read `tree` from `archive`, or refused it with `error`."""
    why = ""
    theirs: Any = REFUSED
    try:
        theirs = torch.load(io.BytesIO(archive), weights_only=True, map_location="cpu")
    except Exception as refusal:  # of any kind: it checks little
        why = f"{type(refusal).__name__}: {refusal}"
    if theirs is REFUSED and error is None:
        assert any(part in why for part in ONLY_OURS), f"only ours accepts it: {why}"
    elif theirs is not REFUSED and error is not None:
        assert any(part in str(error) for part in ONLY_THEIRS), f"only theirs accepts it: {error}"
    elif error is None:
        _Comparison(storages).same(tree, theirs)


class _Comparison:
    """Whether two trees hold equal values. What is opaque to ours is not looked into."""

    def __init__(self, storages: Sequence[bytes]) -> None:
        self._storages = {str(number): data for number, data in enumerate(storages)}

    def same(self, ours: Any, theirs: Any) -> None:
        waiting, seen = [(ours, theirs)], set()
        while waiting:
            one, other = waiting.pop()
            if (id(one), id(other)) in seen:
                continue
            seen.add((id(one), id(other)))
            waiting += self._parts(one, other)

    def _parts(self, ours: Any, theirs: Any) -> list[tuple[Any, Any]]:
        if isinstance(ours, Opaque | Global | Storage):
            return []
        if isinstance(ours, StoredTensor):
            self._tensor(ours, theirs)
        elif isinstance(ours, DType):
            assert str(theirs) == f"torch.{ours.name}", (ours, theirs)
        elif isinstance(ours, dict):
            assert isinstance(theirs, dict), theirs
            assert isinstance(ours, Ordered) == (type(theirs).__name__ == "OrderedDict"), theirs
            assert len(ours) == len(theirs), (ours, theirs)
            return list(zip([*ours, *ours.values()], [*theirs, *theirs.values()], strict=True))
        elif isinstance(ours, list | tuple):
            kind = torch.Size if isinstance(ours, Size) else type(ours)
            assert type(theirs) is kind, (ours, theirs)
            assert len(ours) == len(theirs), (ours, theirs)
            return list(zip(ours, theirs, strict=True))
        elif isinstance(ours, set | frozenset):
            assert type(ours) is type(theirs), (ours, theirs)
            assert len(ours) == len(theirs), (ours, theirs)
        elif isinstance(ours, float) and math.isnan(ours):
            assert math.isnan(theirs), theirs
        else:
            assert type(ours) is type(theirs), (ours, theirs)
            assert ours == theirs, (ours, theirs)
        return []

    def _tensor(self, ours: StoredTensor, theirs: Any) -> None:
        assert isinstance(theirs, torch.Tensor), theirs
        assert str(theirs.dtype) == f"torch.{ours.dtype.name}"
        assert tuple(theirs.shape) == ours.shape
        if theirs.numel() and theirs.numel() < 10_000:
            assert theirs.stride() == ours.strides
            data = bytearray(self._storages[ours.storage.key])
            whole = torch.frombuffer(data, dtype=theirs.dtype)
            view = whole.as_strided(ours.shape, ours.strides, ours.offset)
            assert _bits(view) == _bits(theirs)


def _bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
