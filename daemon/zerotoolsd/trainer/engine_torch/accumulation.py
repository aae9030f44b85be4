"""Sums the gradients of a step's micro batches.

`local`: FSDP2 keeps the whole gradients of each rank in fp32 until the last micro batch reduces
them: one exchange a step, and 4 bytes for every parameter on every rank.

`sharded`: every micro batch is reduced. FSDP2 adds a rank's result to its gradients, in fp32 and at
their location; masters apart from the weights add it to their fp32 buffers. Only if groups of ranks
share a copy, and gradients stay on the device, is the sum over the groups left to the last micro
batch: until then FSDP2 keeps this rank's part of its group's, with as many bytes.
"""

from __future__ import annotations

from typing import Any

from zerotools.core.training_memory import DEVICE, LOCAL, MemoryLayout


def before_micro_batch(model: Any, layout: MemoryLayout, *, is_last: bool) -> None:
    """Tell FSDP2, if it wraps `model`, how to treat the gradients of its next backward pass."""
    if not layout.is_sharded:
        return
    if layout.accumulate == LOCAL:
        model.set_requires_gradient_sync(is_last)
    elif layout.replicates_weights and not layout.has_masters and layout.params_tier == DEVICE:
        model.set_requires_all_reduce(is_last)
