"""The plan to thin a checkpoint (remove its optimizer state): the files and tensors that stay.

The plan is computed before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zerotools.core.checkpoint import Key
from zerotools.core.target import FilePlan


class Keep(StrEnum):
    """The part of a checkpoint that thinning keeps.

    `MASTERS` keeps everything except the optimizer state. `WEIGHTS` removes the masters too, if the
    checkpoint has 16-bit weights.
    """

    WEIGHTS = "weights"
    MASTERS = "masters"


@dataclass(frozen=True)
class Thinning:
    """The changes that thinning makes to a checkpoint's files. Names are relative to the
    checkpoint's root; all other files stay unchanged.

    `keep` is the part that thinning keeps. It may be more than the user asked for: masters are kept
    if the checkpoint has no other weights. The files `removed` are deleted. The files `rewritten`
    are written again, from bytes of the source. `kept` maps the key of each tensor of the result to
    its key in the source. `notes` are sentences for the user.
    """

    keep: Keep
    kept: Mapping[Key, Key]
    removed: frozenset[str] = frozenset()
    rewritten: Mapping[str, FilePlan] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if thinning changes no file."""
        return not self.removed and not self.rewritten
