"""What of a checkpoint's files stays when it is thinned: a value, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zerotools.core.checkpoint import Key
from zerotools.core.target import FilePlan


class Keep(StrEnum):
    """What stays. `MASTERS`: all but the state of the optimizer. `WEIGHTS`: the masters go too,
    where 16-bit weights lie beside them."""

    WEIGHTS = "weights"
    MASTERS = "masters"


@dataclass(frozen=True)
class Thinning:
    """Names of files are relative to the checkpoint's root; all others stay as they are.

    `keep` is what stays, which is more than was asked for where the weights lie nowhere else.
    `removed` go, `rewritten` are written anew, from bytes that are carried over. `kept` has every
    tensor of the result, by the key that the reader gives it there, with its key in the source;
    `notes` are sentences for the user. Where nothing is removed or rewritten, there is nothing to
    drop.
    """

    keep: Keep
    kept: Mapping[Key, Key]
    removed: frozenset[str] = frozenset()
    rewritten: Mapping[str, FilePlan] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to drop."""
        return not self.removed and not self.rewritten
