"""The memory of one rank, term by term, and its peak.

The terms of the training state are exact for engine `torch` (`state_memory`), and activations
follow from the architecture (`activation_memory`). Temporary memory does not all exist at the same
time, so two moments are compared:

    loss          the state without gradients, all activations, the logits and their gradients
    last block    the state with all gradients, the activations of one block

The peak is the larger of the two. Between them, block by block, gradients are added and activations
are freed. If the gradients of several micro batches are added up, the gradients exist all the time.

On a GPU, three terms are added: the CUDA context, NCCL with the loaded libraries, and memory that
the allocator holds in addition to the tensors. The first two were measured on one H200 (driver
580.159.04, torch 2.11.0, CUDA 13.0, transformers 5.17.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zerotools.core.training_memory_layout import (
    DEVICE,
    DISK,
    GRADIENTS,
    HOST,
    ITEM_BYTES,
    MASTERS,
    MOMENTS,
    UPDATE_BUCKET_BYTES,
    WEIGHTS,
    MemoryLayout,
)
from zerotools.ops.estimate.activation_memory import Activations
from zerotools.ops.estimate.state_memory import (
    Parameter,
    State,
    bytes_at,
    gathered_bytes,
    state_of,
    update_buffer,
)

MIB = 1 << 20
CUDA_CONTEXT = 680 * MIB
"""The GPU memory of a process with a context and cuBLAS, without torch's reserved memory: 682 MiB
on the H200, the mean of four processes."""
NCCL_BUFFERS = 680 * MIB
"""The GPU memory of NCCL, cuDNN and loaded kernels. A rank of engine `torch` held 1,360 MiB without
torch's reserved memory, context included, in a group of one rank. Larger groups were not
measured."""
ALLOCATOR_SHARE = 0.05
"""The share of temporary memory that torch's caching allocator holds beyond the tensors."""
PROCESS_BYTES = 1200 * MIB
"""Host memory of a rank with a GPU: Python, torch, CUDA and transformers, without pages of files.
On the H200's machine a rank held 1,170 MiB, and 1,262 with pandas, scikit-learn and torchvision."""
CPU_PROCESS_BYTES = 450 * MIB
"""Host memory of a rank on the CPU, with the memory that the C library keeps after building a
model."""
CPU_ALLOCATOR_SHARE = 0.15
"""The share of temporary memory on the CPU that the C library holds beyond the tensors."""
COPY_BUFFERS = 3 * UPDATE_BUCKET_BYTES
"""The pinned host memory that engine `torch` uses to copy offloaded state to the GPU and back."""
NOT_MEASURED = ("allocator",)

_REDUCE_ELEMENTS = 500_000_000
_PREFETCH_ELEMENTS = 50_000_000
_LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's defaults: reduce_bucket_size and allgather_bucket_size, stage3_prefetch_bucket_size,
stage3_max_live_parameters (https://www.deepspeed.ai/docs/config-json, ZeRO Optimizations)."""


@dataclass(frozen=True)
class Buckets:
    """The sizes of DeepSpeed's buckets, as numbers of elements."""

    reduce: int = _REDUCE_ELEMENTS
    allgather: int = _REDUCE_ELEMENTS
    prefetch: int = _PREFETCH_ELEMENTS
    live: int = _LIVE_ELEMENTS


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank, in bytes.

    `device` and `host` have the size of each term, keyed by its name. `disk` is the size of files.
    `peak` is the largest sum of memory that exists on the device at the same time. It does not
    include activations if `knows_activations` is False.
    """

    device: Mapping[str, int]
    host: Mapping[str, int]
    disk: int
    peak: int
    knows_activations: bool = True
    largest_block: int = 0
    """The largest size in bytes of weights that are gathered on the device at the same time."""

    @property
    def host_total(self) -> int:
        """All host memory of the rank, in bytes."""
        return sum(self.host.values())


GPUS_OF_A_NODE = 8
"""The default number of GPUs of a node."""


@dataclass(frozen=True)
class Machine:
    """The hardware that the ranks run on.

    If `on_gpu` is False, the ranks compute on the CPU, and the device memory is the host's. `gpus`
    is the number of GPUs, or of CPU ranks, on all nodes. Each node has `node_ranks` of them (None:
    at most eight GPUs, or all CPU ranks) and `host_memory` bytes.
    """

    gpus: int
    gpu_memory: int
    host_memory: int
    on_gpu: bool = True
    notes: tuple[str, ...] = field(default=())
    node_ranks: int | None = None

    @property
    def ranks_of_node(self) -> int:
        """The number of ranks that share the host memory of one node."""
        if self.node_ranks is not None:
            return self.node_ranks
        return min(self.gpus, GPUS_OF_A_NODE) if self.on_gpu else self.gpus

    def has_room(self, device_bytes: int, host_bytes: int) -> bool:
        """Return whether each GPU has `device_bytes` of memory and each node has `host_bytes` of
        host memory. `zerotools estimate`, `zerotools init` and the daemon all use this check."""
        fits_device = not self.on_gpu or device_bytes <= self.gpu_memory
        return fits_device and host_bytes <= self.host_memory


@dataclass(frozen=True)
class HeldMemory:
    """The memory of a rank that does not depend on its micro batch, in bytes.

    Attributes:
        state: weights, gradients and optimizer state.
        in_passes: temporary buffers on the device during the passes, for gathered weights and for
            gradients that are sent to other ranks.
        largest_block: the size of the largest block of weights.
        update_bytes: the fp32 buffer that 16-bit gradients are widened into. It is on the device or
            the host, wherever the optimizer step runs.
    """

    state: State
    in_passes: Mapping[str, int]
    largest_block: int
    update_bytes: int = 0


def held_by(
    parameters: Sequence[Parameter], layout: MemoryLayout, buckets: Buckets, *, on_gpu: bool
) -> HeldMemory:
    """Return the memory without activations of the rank that needs most."""
    largest = _largest_block(parameters, layout)
    in_passes = _in_the_passes(parameters, layout, buckets, largest, on_gpu=on_gpu)
    update_bytes = update_buffer(parameters, layout) if layout.engine == "torch" else 0
    if update_bytes and layout.state_tier == DEVICE:
        in_passes["update buffer"] = update_bytes
    return HeldMemory(state_of(parameters, layout), in_passes, largest, update_bytes)


def with_activations(
    held: HeldMemory, layout: MemoryLayout, activations: Activations | None, *, on_gpu: bool
) -> RankMemory:
    """Return the whole memory of a rank: `held`, the activations (None: unknown) and the
    libraries."""
    state, in_passes = held.state, held.in_passes
    kept, block, loss, last = _activations(activations)
    gradients = state.get((DEVICE, GRADIENTS), 0)
    fixed = bytes_at(state, DEVICE) - gradients + sum(in_passes.values())
    summed = gradients if layout.accumulate is not None else 0
    peak = fixed + max(kept + max(loss, block) + summed, gradients + last)
    device = {
        "weights": state.get((DEVICE, WEIGHTS), 0),
        "gradients": gradients,
        "optimizer": _optimizer(state, DEVICE),
        **in_passes,
        "activations": kept + block,
        "loss": loss,
    }
    coming = max(kept + max(loss, block), gradients) + sum(in_passes.values())
    host = _host(state, layout, held.update_bytes, on_gpu=on_gpu)
    if not on_gpu:
        host["allocator"] = int(CPU_ALLOCATOR_SHARE * coming)
    else:
        overhead = {
            "allocator": int(ALLOCATOR_SHARE * coming),
            "CUDA context": CUDA_CONTEXT,
            "NCCL": NCCL_BUFFERS,
        }
        device.update(overhead)
        peak += sum(overhead.values())
    return RankMemory(
        device,
        host,
        bytes_at(state, DISK),
        peak,
        knows_activations=activations is not None,
        largest_block=held.largest_block,
    )


def _activations(found: Activations | None) -> tuple[int, int, int, int]:
    if found is None:
        return (0, 0, 0, 0)
    return (found.kept, found.block, found.loss, found.last)


def _optimizer(state: State, tier: str) -> int:
    return state.get((tier, MASTERS), 0) + state.get((tier, MOMENTS), 0)


def _host(state: State, layout: MemoryLayout, update_bytes: int, *, on_gpu: bool) -> dict[str, int]:
    found = {
        "process": PROCESS_BYTES if on_gpu else CPU_PROCESS_BYTES,
        "weights": state.get((HOST, WEIGHTS), 0),
        "gradients": state.get((HOST, GRADIENTS), 0),
        "optimizer": _optimizer(state, HOST),
    }
    if update_bytes and layout.state_tier != DEVICE:
        found["update buffer"] = update_bytes
    if on_gpu and layout.state_tier != DEVICE:
        found["pinned buffers"] = COPY_BUFFERS
    return found


def _in_the_passes(
    parameters: Sequence[Parameter],
    layout: MemoryLayout,
    buckets: Buckets,
    largest: int,
    *,
    on_gpu: bool,
) -> dict[str, int]:
    """Return the bytes of temporary buffers during the passes, keyed by name. They are for gathered
    weights, and for gradients that are sent to other ranks."""
    if layout.engine == "deepspeed":
        return _deepspeed_buckets(parameters, layout, buckets)
    width = ITEM_BYTES[layout.precision]
    found = {"gathered weights": gathered_bytes(parameters, layout)}
    if layout.is_sharded and not layout.keeps_gathered:
        found["prefetch"] = largest  # the next block's, while one is computed with
    if layout.is_sharded:
        trained = [each for each in parameters if each.is_trained]
        elements = _largest_block(trained, layout) // width
        # Where gloo reduces, it does so in a copy.
        copies = 1 if on_gpu or layout.world_size == 1 else 2
        found["reduce buffers"] = elements * (width + copies * ITEM_BYTES["fp32"])
    return found


def _deepspeed_buckets(
    parameters: Sequence[Parameter], layout: MemoryLayout, buckets: Buckets
) -> dict[str, int]:
    width = ITEM_BYTES[layout.precision]
    count = sum(parameter.numel for parameter in parameters)
    if layout.world_size == 1 and layout.stage == 0:
        return {}
    found = {"reduce buffers": 2 * width * min(count, buckets.reduce)}
    if layout.stage in (1, 2):
        found["gathered weights"] = width * min(count, buckets.allgather)
    if layout.stage == 3:
        found["gathered weights"] = width * min(count, buckets.live)
        found["prefetch"] = width * min(count, buckets.prefetch)
    return found


def _largest_block(parameters: Sequence[Parameter], layout: MemoryLayout) -> int:
    """Return the bytes of the largest block of weights."""
    sizes: dict[str | None, int] = {}
    for parameter in parameters:
        if parameter.is_packed:
            continue
        part = parameter.part(layout.tensor_ranks)
        size = parameter.width(layout.precision) * part.numel
        sizes[parameter.block] = sizes.get(parameter.block, 0) + size
    return max(sizes.values(), default=0)
