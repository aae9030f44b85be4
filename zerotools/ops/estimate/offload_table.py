"""A table of all combinations of ZeRO stage and offload: the memory of each, and whether it fits.

The fastest combination comes first: all stages without offload, then all stages with each kind of
offload. Lower stages come first, because a higher stage shards more and so communicates more.
Stages 0 to 2 send the same number of bytes, but higher stages send them in more and smaller
messages. Stage 3 sends 1.5 times as many bytes (Rajbhandari et al. 2020, section 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from zerotools.core.training_memory_layout import LOCAL, SHARDED, MemoryLayout
from zerotools.ops.estimate.activation_memory import Activations, MicroBatch, activations_of
from zerotools.ops.estimate.parameter_shapes import ModelShape
from zerotools.ops.estimate.rank_memory import (
    Buckets,
    HeldMemory,
    Machine,
    RankMemory,
    held_by,
    with_activations,
)

NONE, OPTIMIZER, PARAMS, ALL = "none", "optimizer", "params", "all"
DISK, ALL_DISK = "disk", "all-disk"
"""Offloads: the optimizer on disk; the optimizer on disk and the weights in host memory."""
OFFLOAD_KEYS = {
    NONE: ("none", "none"),
    OPTIMIZER: ("cpu", "none"),
    PARAMS: ("none", "cpu"),
    ALL: ("cpu", "cpu"),
    DISK: ("disk", "none"),
    ALL_DISK: ("disk", "cpu"),
}
"""The values of `offload.optimizer` and `offload.params`."""
OFFLOADS = tuple(OFFLOAD_KEYS)
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Workload:
    """A training to estimate: the model, the layout of ranks without its stage and offload, and the
    micro batch.

    If `micro` is None, only weights, gradients and optimizer state are estimated. `sums` is the
    value of `train.accumulate`; None means the default of the stage.
    """

    model: ModelShape
    layout: MemoryLayout
    micro: MicroBatch | None
    buckets: Buckets = field(default_factory=Buckets)
    sums: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table: a ZeRO stage with an offload, and its memory.

    `host_bytes` is the host memory of all ranks on one node. `fits` is None if the size of the
    activations is not known and all other memory fits.
    """

    stage: int
    offload: str
    layout: MemoryLayout = field(repr=False)
    memory: RankMemory = field(repr=False)
    host_bytes: int
    fits: bool | None

    @property
    def peak_bytes(self) -> int:
        """The peak memory of each GPU."""
        return self.memory.peak


def rows_of(
    work: Workload,
    machine: Machine,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
) -> list[Row]:
    """Return the rows of all possible stages and offloads, fastest first."""
    return [
        row_of(work, machine, stage, offload)
        for offload in OFFLOADS
        for stage in STAGES
        if stage in stages and offload in offloads and is_possible(work.layout, stage, offload)
        if len(stages) == 1 or stage_shards_more(work.layout, stage, offload)
        if machine.on_gpu or offload in (NONE, DISK)  # else it is the same memory
    ]


def stage_shards_more(layout: MemoryLayout, stage: int, offload: str) -> bool:
    """Return whether `stage` can need less memory than the stage below. With one rank, engine
    `torch` shards nothing."""
    alone = layout.world_size == 1 and layout.engine == "torch"
    return not alone or stage == 0 or offload in (ALL, ALL_DISK)


def is_possible(layout: MemoryLayout, stage: int, offload: str) -> bool:
    """Return whether a job with this layout of ranks can have this stage and offload."""
    keeps_weights = OFFLOAD_KEYS[offload][1] == "none"
    if layout.tensor_ranks > 1 and stage < 2:
        return False
    if not keeps_weights and (stage != 3 or layout.packs_frozen):
        return False
    if layout.engine == "torch":  # there the optimizer follows the weights
        return offload != PARAMS
    if offload in (DISK, ALL_DISK):
        return stage == 3
    return stage >= 1 or offload == NONE


def row_of(work: Workload, machine: Machine, stage: int, offload: str) -> Row:
    """Return the row of the table for one stage and offload."""
    return row_of_layout(work, machine, layout_of(work, stage, offload), offload)


def layout_of(work: Workload, stage: int, offload: str) -> MemoryLayout:
    """Return the layout of `work` with this stage and this offload."""
    optimizer, params = OFFLOAD_KEYS[offload]
    layout = work.layout
    if layout.accumulate is not None:
        summed = work.sums or (SHARDED if stage >= 2 else LOCAL)
        layout = replace(layout, accumulate=summed)
    return replace(
        layout,
        stage=stage,
        offload_optimizer=optimizer,
        offload_params=params,
        shard_size=layout.shard_size if stage >= 2 else None,
    )


def row_of_layout(
    work: Workload,
    machine: Machine,
    layout: MemoryLayout,
    offload: str,
    held: HeldMemory | None = None,
) -> Row:
    """Return the row of the table for a given layout. `held` is the memory that does not depend on
    the micro batch; None: it is computed."""
    on_gpu = machine.on_gpu
    if held is None:
        held = held_by(work.model.parameters, layout, work.buckets, on_gpu=on_gpu)
    memory = with_activations(held, layout, _activations(work, layout), on_gpu=on_gpu)
    ranks = machine.ranks_of_node
    host = memory.host_total * ranks
    if not machine.on_gpu:
        host += memory.peak * ranks
    room = machine.has_room(memory.peak, host)
    fits = None if room and not memory.knows_activations else room
    return Row(layout.stage, offload, layout, memory, host, fits)


def _activations(work: Workload, layout: MemoryLayout) -> Activations | None:
    micro = work.micro
    if micro is None or work.model.architecture is None:
        return None
    if layout.engine == "deepspeed" and layout.stage == 3:
        micro = replace(micro, chunked_loss="off")  # its weights are gathered by module
    return activations_of(work.model.architecture, micro)
