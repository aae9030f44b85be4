"""Every stage with every offload, what fits of them, and the fastest of those.

Fastest first: without offload before with it, and of either the lowest stage first: each shards
more, and so sends more between the ranks (stages 0 to 2 the same bytes, but in more and smaller
pieces; stage 3 half as many again, Rajbhandari et al. 2020, section 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from zerotools.core.memory_layout import MemoryLayout
from zerotools.ops.estimate.activations import MicroBatch, activations_of
from zerotools.ops.estimate.model_shape import ModelShape
from zerotools.ops.estimate.terms import Buckets, Machine, RankMemory, rank_memory

NONE, OPTIMIZER, PARAMS, ALL = "none", "optimizer", "params", "all"
OFFLOADS = (NONE, OPTIMIZER, PARAMS, ALL)
STAGES = (0, 1, 2, 3)
MOST_GPUS = 1 << 12
MOST_SEQUENCES = 1 << 16
MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Workload:
    """What is to be trained and how: the model, the layout but for stage and offload, and what goes
    through it at a time (None: only the state is asked for)."""

    model: ModelShape
    layout: MemoryLayout
    micro: MicroBatch | None
    buckets: Buckets = field(default_factory=Buckets)


@dataclass(frozen=True)
class Row:
    """One line of the table: a layout and its memory on the machine, `host_bytes` of the ranks of
    one node. `fits` is None where it would without activations, which are not known."""

    stage: int
    offload: str
    layout: MemoryLayout = field(repr=False)
    memory: RankMemory = field(repr=False)
    host_bytes: int
    fits: bool | None

    @property
    def peak_bytes(self) -> int:
        """The memory that it takes of each GPU."""
        return self.memory.peak


@dataclass(frozen=True)
class Choice:
    """The fastest that fits (None: nothing does), why, and what else is worth knowing; the largest
    batch at the given sequence and the largest sequence with one of them, that fit there."""

    row: Row | None
    reason: str
    advice: tuple[str, ...] = ()
    largest_batch: int | None = None
    largest_sequence: int | None = None


def rows_of(
    work: Workload,
    machine: Machine,
    stages: Sequence[int] = STAGES,
    offloads: Sequence[str] = OFFLOADS,
) -> list[Row]:
    """All that can be had of these, fastest first."""
    return [
        row_of(work, machine, stage, offload)
        for offload in OFFLOADS
        for stage in STAGES
        if stage in stages and offload in offloads and _exists(work.layout, stage, offload)
        if len(stages) == 1 or _shards(work.layout, stage, offload)
        if machine.on_gpu or offload == NONE  # else it is the same memory
    ]


def _shards(layout: MemoryLayout, stage: int, offload: str) -> bool:
    """Whether a stage is another than the one below it: one rank has nobody to share with."""
    alone = layout.world_size == 1 and layout.engine == "torch"
    return not alone or stage == 0 or offload == ALL


def _exists(layout: MemoryLayout, stage: int, offload: str) -> bool:
    if layout.tensor_ranks > 1 and stage < 2:
        return False
    if layout.packs_frozen and offload in (PARAMS, ALL):
        return False
    if offload == PARAMS:  # with engine torch the optimizer goes where the weights are
        return stage == 3 and layout.engine == "deepspeed"
    if offload == ALL:
        return stage == 3
    if offload == OPTIMIZER and layout.engine == "deepspeed":
        return stage >= 1
    return True


def row_of(work: Workload, machine: Machine, stage: int, offload: str) -> Row:
    """The memory of one stage and offload."""
    layout = replace(
        work.layout,
        stage=stage,
        offload_optimizer="cpu" if offload in (OPTIMIZER, ALL) else "none",
        offload_params="cpu" if offload in (PARAMS, ALL) else "none",
        shard_size=work.layout.shard_size if stage >= 2 else None,
    )
    return row_of_layout(work, machine, layout, offload)


def row_of_layout(work: Workload, machine: Machine, layout: MemoryLayout, offload: str) -> Row:
    """The memory of a layout as it is."""
    found = None
    if work.micro is not None and work.model.architecture is not None:
        found = activations_of(work.model.architecture, work.micro)
    memory = rank_memory(
        work.model.parameters, layout, found, on_gpu=machine.on_gpu, buckets=work.buckets
    )
    ranks = machine.ranks_of_node
    host = memory.host_total * ranks
    if not machine.on_gpu:
        host += memory.peak * ranks
    room = (memory.peak <= machine.gpu_memory or not machine.on_gpu) and host <= machine.host_memory
    fits = None if room and not memory.knows_activations else room
    return Row(layout.stage, offload, layout, memory, host, fits)


def choose(work: Workload, machine: Machine, rows: Sequence[Row]) -> Choice:
    """The first row that fits, of rows that are ordered."""
    found = next((row for row in rows if row.fits is not False), None)
    if found is None:
        return Choice(None, _why_nothing(machine, rows), tuple(_ways_out(work, machine, rows)))
    batch = sequence = None
    if work.micro is not None and found.fits:
        micro = work.micro
        batch = _largest(
            lambda n: _fits(work, machine, found, replace(micro, batch=n)), MOST_SEQUENCES
        )
        sequence = _largest(
            lambda n: _fits(work, machine, found, replace(micro, batch=1, sequence=n)), MOST_TOKENS
        )
    advice = tuple(_advice(work, machine, found))
    return Choice(found, _why(machine, rows, found), advice, batch, sequence)


def _fits(work: Workload, machine: Machine, row: Row, micro: MicroBatch) -> bool:
    changed = replace(work, micro=micro)
    return row_of_layout(changed, machine, row.layout, row.offload).fits is True


def _largest(fits: object, most: int) -> int:
    """The largest of 1 to `most` that fits, where all below it do; 0: none."""
    assert callable(fits)
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _why(machine: Machine, rows: Sequence[Row], chosen: Row) -> str:
    """One sentence: what is taken, and what kept the faster ones out."""
    taken = f"stage {chosen.stage}"
    if chosen.offload != NONE:
        taken += f" with {_words(chosen.offload)} in host memory"
    here = f"{taken} is the fastest that fits"
    before = rows[: list(rows).index(chosen)]
    if not before:
        return f"{here}: nothing needs to be sharded" if chosen.stage == 0 else here
    last = before[-1]
    return f"{here}: stage {last.stage}{_with(last.offload)} {_excess(machine, last)}"


def _words(offload: str) -> str:
    return {OPTIMIZER: "the optimizer", PARAMS: "the weights", ALL: "weights and optimizer"}[
        offload
    ]


def _with(offload: str) -> str:
    return "" if offload == NONE else f" with {_words(offload)} in host memory"


def _excess(machine: Machine, row: Row) -> str:
    if machine.on_gpu and row.memory.peak > machine.gpu_memory:
        return f"takes {gib(row.memory.peak)} of a GPU's {gib(machine.gpu_memory)}"
    return f"takes {gib(row.host_bytes)} of the host's {gib(machine.host_memory)}"


def _why_nothing(machine: Machine, rows: Sequence[Row]) -> str:
    least = min(rows, key=lambda row: (row.memory.peak, row.host_bytes), default=None)
    if least is None:
        return "there is no such combination of stage and offload"
    return (
        f"nothing fits: stage {least.stage}{_with(least.offload)} needs least"
        f"{' on a GPU' * machine.on_gpu}, and {_excess(machine, least)}"
    )


def _ways_out(work: Workload, machine: Machine, rows: Sequence[Row]) -> Iterator[str]:
    largest = max((row.memory.largest_block for row in rows), default=0)
    if machine.on_gpu and largest > machine.gpu_memory:
        yield (
            f"the largest layer alone takes {gib(largest)}, which no ZeRO stage makes smaller on a "
            "GPU while it is computed with: share it among GPUs by zero.tensor_ranks"
        )
        return
    micro = work.micro
    if micro is None:
        return
    if not micro.checkpointing and work.model.architecture is not None:
        better = replace(work, micro=replace(micro, checkpointing=True))
        chosen = next((row for row in rows_of(better, machine) if row.fits), None)
        if chosen is not None:
            yield (
                f"with --activation-checkpointing stage {chosen.stage}{_with(chosen.offload)} fits"
            )
            return
    if micro.batch > 1:
        yield f"take a smaller micro batch (it is {micro.batch} sequences now)"
    otherwise = "GPUs with more memory" if machine.on_gpu else "a machine with more memory"
    yield _more_gpus(work, machine) or f"take {otherwise}, or shorter sequences"


def _more_gpus(work: Workload, machine: Machine) -> str | None:
    """How many would do, each as large, with all that stage 3 and checkpointing save."""
    if work.micro is None or work.model.architecture is None or not machine.on_gpu:
        return None
    micro = replace(work.micro, checkpointing=True)
    gpus = 2 * machine.gpus
    while gpus <= MOST_GPUS:
        more = replace(work, micro=micro, layout=replace(work.layout, world_size=gpus))
        larger = replace(machine, gpus=gpus)
        if row_of(more, larger, 3, NONE).fits:
            return f"{gpus} such GPUs would do, at stage 3 with activation checkpointing"
        gpus *= 2
    return None


def _advice(work: Workload, machine: Machine, chosen: Row) -> Iterator[str]:
    if chosen.stage == 0 and chosen.offload == NONE and machine.gpus > 1:
        yield "plain data parallelism (DDP) is enough: ZeRO is not needed for memory here"
    micro = work.micro
    if chosen.offload != NONE and micro is not None and not micro.checkpointing:
        better = replace(work, micro=replace(micro, checkpointing=True))
        inside = [row for row in rows_of(better, machine, offloads=(NONE,)) if row.fits]
        if inside and work.model.architecture is not None:
            yield (
                f"with --activation-checkpointing stage {inside[0].stage} fits without offload, "
                "which is faster as a rule"
            )
    nodes = machine.gpus > machine.ranks_of_node
    if nodes and chosen.stage >= 2 and chosen.layout.shard_size == machine.ranks_of_node:
        yield (
            f"each node has a copy of the weights, shared by its {machine.ranks_of_node} ranks "
            "(zero.shard_size), so that gradients alone cross the link between nodes; "
            f"zero.shard_size = {machine.gpus} takes less memory, and gathers weights over the link"
        )
    elif nodes and chosen.stage >= 2:
        yield (
            f"over slow links between nodes, zero.shard_size = {machine.ranks_of_node} gathers "
            "weights inside a node alone, where that fits; else stage 1 sends least"
        )
    if work.model.architecture is None:
        yield "activations are unknown: leave room for them, or measure a few steps"


def gib(count: int) -> str:
    """Bytes in GiB, for a sentence."""
    return f"{count / 2**30:,.1f} GiB"
