"""The values of a Megatron checkpoint that `training_of` needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.training import ParamGroup
from zerotools.formats.megatron.origin import MegatronFacts
from zerotools.io.torchzip.pt_file import TorchFile


@dataclass(frozen=True, slots=True)
class MegatronNative:
    """`optimizers` are the trees of the optimizers, the dense one before that of the experts, and
    `file` holds those of their numbers that are tensors. `unread` names the state that is left out,
    with the reason; empty: none is. `groups` reads param groups that list their parameters."""

    facts: MegatronFacts
    optimizers: Sequence[Mapping[Any, Any]] = field(default=())
    file: TorchFile | None = None
    unread: str = ""
    groups: Callable[[], tuple[ParamGroup, ...]] = tuple


def native_of(checkpoint: Checkpoint) -> MegatronNative:
    """Return the native values of a Megatron checkpoint; for other formats, an empty one."""
    found = checkpoint.native
    return found if isinstance(found, MegatronNative) else MegatronNative(MegatronFacts(None, {}))
