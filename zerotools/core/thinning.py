"""The files and tensors of a checkpoint that thinning keeps: a value, before anything is
written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zerotools.core.checkpoint import Key
from zerotools.core.target import FilePlan


class Keep(StrEnum):
    """The parts that are kept. `MASTERS`: all but the optimizer's state. `WEIGHTS`: the masters are
    removed too, if 16-bit weights lie next to them."""

    WEIGHTS = "weights"
    MASTERS = "masters"


@dataclass(frozen=True)
class Thinning:
    """The change of a checkpoint's files. Names are relative to its root; other files stay as they
    are.

    `keep` is what is kept; it is more than requested if the weights exist nowhere else. The files
    `removed` are deleted, and `rewritten` are written again from bytes that are carried over.
    `kept` has every tensor of the result, by the key that the reader gives it there, with its key
    in the source. `notes` are sentences for the user. Without removed or rewritten files, nothing
    is dropped.
    """

    keep: Keep
    kept: Mapping[Key, Key]
    removed: frozenset[str] = frozenset()
    rewritten: Mapping[str, FilePlan] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if thinning would drop nothing."""
        return not self.removed and not self.rewritten
