"""How gradients are reduced over replicas, and the memory for it, given back when they left it.

FSDP2 reduces the gradients of a block in one buffer of fp32. If ranks hold replicas (stages 0 and
1, groups of `zero.shard_size`), it references the buffer of each block until the end of the
backward pass, so that no stream gets that memory while another still works on it (torch's pull
requests 140044 and 180900). If the buffer is the gradient itself, that costs nothing. But with
masters apart from the weights, or with parameters on the host, a block's gradients are copied out
of it after the reduction. Then the buffers of all blocks would need 4 bytes per parameter, although
ZeRO-Offload leaves 2 on the device.

So the buffer of a block is freed when the next block's has been reduced. torch's allocator knows
the stream that worked on it, and does not reuse the memory before that stream is done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from zerotools.core.training_memory import HOST, MemoryLayout


def free_reduction_buffers(model: Any, layout: MemoryLayout, device: torch.device) -> None:
    """Free the buffers of `model`, if gradients of this layout are copied out of them."""
    # Without a GPU, parameters "on the host" have the buffer itself as their gradient.
    leave = layout.has_masters or (layout.params_tier == HOST and device.type == "cuda")
    if not (layout.replicates_weights and leave):
        return
    hook = _Reduced()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(hook)


def sum_over_one_rank(model: Any, mesh: DeviceMesh) -> None:
    """Have FSDP2 add up gradients and divide the sum, if a group of `mesh` has one rank.

    NCCL's average over one rank leaves out the last elements before NCCL 2.29.7 (NVIDIA/nccl 1950,
    torch's issue 144045): their gradients would be zero.
    """
    if mesh.device_type == "cpu" or 1 not in mesh.shape:
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


class _Reduced:
    """Called with each buffer after its reduction, in the same stream. It frees the previous one,
    which only FSDP may still reference."""

    def __init__(self) -> None:
        self._last: Callable[[], torch.Tensor | None] = lambda: None

    def __call__(self, buffer: torch.Tensor) -> None:
        before = self._last()
        if before is not None:
            if before.is_cuda:
                before.record_stream(torch.cuda.current_stream(before.device))
            before.untyped_storage().resize_(0)
        self._last = weakref.ref(buffer)
