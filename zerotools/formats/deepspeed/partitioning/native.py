"""What is kept of a DeepSpeed checkpoint for its own writers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard


@dataclass(frozen=True, slots=True)
class DeepSpeedNative:
    """`mp_shards` are the model-parallel ranks in their order, of which `tensor_ranks` are the
    tensor-parallel ranks of one pipeline stage. `frozen` are the parameters that were not trained.
    `is_elastic` says that the partitions are not tied to a number of ranks."""

    mp_shards: Sequence[MpShard]
    tensor_ranks: int
    frozen: frozenset[str]
    is_elastic: bool


def native_of(checkpoint: Checkpoint) -> DeepSpeedNative:
    """That of a checkpoint which `reading.read` gave."""
    native = checkpoint.native
    if not isinstance(native, DeepSpeedNative):
        raise TypeError(f"{checkpoint.origin.path} is not a native DeepSpeed checkpoint")
    return native
