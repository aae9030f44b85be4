"""The part of a tensor in one file: all of it, or one rank's pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.torchzip.pickle_values import StoredTensor

WHOLE, DTENSOR, SHARDED = "", "DTensor", "ShardedTensor"


@dataclass(frozen=True, slots=True)
class PartialTensor:
    """A tensor of `shape`, and the blocks of it that one file holds.

    `kind` is WHOLE for a plain tensor. `rank` and `ranks` are the saving rank and the number of
    ranks, None if the value does not record them.
    """

    dtype: DType
    shape: tuple[int, ...]
    blocks: tuple[tuple[Box, StoredTensor], ...]
    kind: str = WHOLE
    rank: int | None = None
    ranks: int | None = None


def attributes(value: Any, name: str) -> Mapping[str, Any]:
    """Return the attributes of an object of class `name`: its `__dict__` and its slots.

    Raises:
        BadFile: it is something else.
    """
    if not isinstance(value, Opaque) or value.name != name:
        raise BadFile(f"a distributed tensor has a {type(value).__name__} instead of a {name}")
    return table(value.state, name)


def table(state: Any, name: str) -> Mapping[str, Any]:
    """Return the attributes in the state of an object: a dict, or (dict or None, dict of slots)."""
    if isinstance(state, tuple) and len(state) == 2:
        parts = [part for part in state if part is not None]
        if all(isinstance(part, dict) for part in parts):
            return {key: value for part in parts for key, value in part.items()}
    if not isinstance(state, dict):
        raise BadFile(f"a {name} has no attributes")
    return state


def counts(values: Any, what: str) -> tuple[int, ...]:
    """Return a tuple of sizes or offsets.

    Raises:
        BadFile: it is not one.
    """
    if not isinstance(values, tuple | list) or len(values) > 64:
        raise BadFile(f"{what} is not a list of at most 64 counts")
    if not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise BadFile(f"{what} is not a list of counts")
    return tuple(values)
