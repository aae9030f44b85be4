"""Recommend one of the settings that fit, with the reason, the largest batch and the longest
sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from zerotools.ops.estimate.activation_memory import MicroBatch
from zerotools.ops.estimate.fit_search import Way, Ways, joined_with_and
from zerotools.ops.estimate.offload_table import (
    ALL,
    ALL_DISK,
    DISK,
    NONE,
    OPTIMIZER,
    PARAMS,
    Row,
    Workload,
    row_of_layout,
)
from zerotools.ops.estimate.rank_memory import Machine

MOST_SEQUENCES = 1 << 16
MOST_TOKENS = 1 << 24
_WORDS = {
    NONE: "",
    OPTIMIZER: " with the optimizer in host memory",
    PARAMS: " with the weights in host memory",
    ALL: " with weights and optimizer in host memory",
    DISK: " with the optimizer on disk",
    ALL_DISK: " with the weights in host memory and the optimizer on disk",
}


@dataclass(frozen=True)
class Choice:
    """The recommended setting: its row of the table (None: no setting fits), the reason, and
    advice.

    `largest_batch` is the largest batch that fits at the given sequence length. `largest_sequence`
    is the longest sequence that fits with a batch of one.
    """

    row: Row | None
    reason: str
    advice: tuple[str, ...] = ()
    largest_batch: int | None = None
    largest_sequence: int | None = None


def choose_cheapest(work: Workload, machine: Machine, rows: Sequence[Row], ways: Ways) -> Choice:
    """Choose the cheapest of `ways`, and give the reason. `rows` is the table for the unchanged
    `work`, fastest first."""
    way = ways.best
    if way is None:
        return Choice(None, _why_nothing(machine, ways), tuple(_ways_out(machine, rows, ways)))
    machine = replace(machine, gpus=way.row.layout.world_size)
    batch, sequence = largest_batch(way, machine), _largest_sequence(way, machine)
    reason = _why(work, machine, rows, way)
    return Choice(way.row, reason, tuple(_advice(work, machine, way.row)), batch, sequence)


def largest_batch(way: Way, machine: Machine, most: int = MOST_SEQUENCES) -> int | None:
    """Return the largest number of sequences in a micro batch that fits, at most `most`; None if
    the setting does not fit, or if the size of its activations is not known."""
    micro = way.work.micro
    if micro is None or not way.row.fits:
        return None
    each = micro.per_example
    count = _largest(lambda n: _fits(way, machine, replace(micro, batch=n * each)), most // each)
    return count * each


def _largest_sequence(way: Way, machine: Machine) -> int | None:
    if way.work.micro is None or not way.row.fits:
        return None
    one = replace(way.work.micro, batch=way.work.micro.per_example)
    return _largest(lambda n: _fits(way, machine, replace(one, sequence=n)), MOST_TOKENS)


def _fits(way: Way, machine: Machine, micro: MicroBatch) -> bool:
    changed = replace(way.work, micro=micro)
    return row_of_layout(changed, machine, way.row.layout, way.row.offload).fits is True


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number n from 1 to `most` with `fits(n)`, or 0. If `fits` is true for a
    number, it must be true for all smaller ones."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _why(work: Workload, machine: Machine, rows: Sequence[Row], way: Way) -> str:
    """Return a sentence with the choice, and why a faster setting does not fit."""
    chosen = way.row
    at = next((at for at, row in enumerate(rows) if row.layout == chosen.layout), None)
    if at is None or way.work.micro != work.micro:
        here = f"stage {chosen.stage} with {way.words} is the fastest that fits"
        alike = [row for row in rows if row.offload == chosen.offload and row.fits is False]
        least = min(alike, key=lambda row: (row.memory.peak, row.host_bytes), default=None)
        if least is None:
            return here
        without = f"stage {least.stage}{_WORDS[least.offload]}"
        return f"{here}: without this, {without} {excess_text(machine, least)}"
    here = f"stage {chosen.stage}{_WORDS[chosen.offload]} is the fastest that fits"
    if at == 0:
        return f"{here}: nothing needs to be sharded" if chosen.stage == 0 else here
    last = next((row for row in reversed(rows[:at]) if row.fits is False), None)
    if last is None:
        return here
    return f"{here}: stage {last.stage}{_WORDS[last.offload]} {excess_text(machine, last)}"


def excess_text(machine: Machine, row: Row) -> str:
    """Return a phrase for a row that does not fit, with the memory that it needs and that of the
    machine."""
    if machine.on_gpu and row.memory.peak > machine.gpu_memory:
        return f"takes {gib_text(row.memory.peak)} of a GPU's {gib_text(machine.gpu_memory)}"
    return f"takes {gib_text(row.host_bytes)} of the host's {gib_text(machine.host_memory)}"


def needs_of(way: Way, machine: Machine) -> str:
    """Return a sentence on the GPU memory, host memory and disk space that `way` needs."""
    row = way.row
    needs = [
        f"{gib_text(row.peak_bytes)} of a GPU's {gib_text(machine.gpu_memory)}"
    ] * machine.on_gpu
    needs.append(f"{gib_text(row.host_bytes)} of the host's {gib_text(machine.host_memory)}")
    needs += [f"{gib_text(way.disk_bytes)} of disk"] * bool(way.disk_bytes)
    return joined_with_and(needs)


def _why_nothing(machine: Machine, ways: Ways) -> str:
    if ways.found:
        return f"nothing fits this machine when all weights are trained: {_nearest(machine, ways)}"
    if ways.nearest is None:
        return "this combination of stage and offload does not exist"
    return f"nothing fits: {_nearest(machine, ways)}"


def _nearest(machine: Machine, ways: Ways) -> str:
    near = ways.nearest
    if near is None:
        return "no setting comes close"
    at = f"stage {near.row.stage}" + (f" with {near.words}" if near.changes else "")
    return f"the nearest is {at}, which takes {needs_of(near, machine)}"


def _ways_out(machine: Machine, rows: Sequence[Row], ways: Ways) -> Iterator[str]:
    largest = min((row.memory.largest_block for row in rows), default=0)
    if machine.on_gpu and largest > machine.gpu_memory:
        yield (
            "no ZeRO stage divides a layer while it is computed, and the largest layer takes "
            f"{gib_text(largest)}; divide it among GPUs with zero.tensor_ranks"
        )
        return
    for way in ways.found:
        yield f"{way.words} would fit"
    if not ways.found:
        more = "GPUs with more memory" if machine.on_gpu else "a machine with more memory"
        yield f"take {more}, shorter sequences, or a smaller model"


def _advice(work: Workload, machine: Machine, chosen: Row) -> Iterator[str]:
    if chosen.stage == 0 and chosen.offload == NONE and machine.gpus > 1:
        yield "plain data parallelism (DDP) is enough: ZeRO is not needed for memory here"
    nodes = machine.gpus > machine.ranks_of_node
    if nodes and chosen.stage >= 2 and chosen.layout.shard_size == machine.ranks_of_node:
        yield (
            f"each node has a copy of the weights, shared by its {machine.ranks_of_node} ranks "
            "(zero.shard_size), so only gradients cross the link between nodes; zero.shard_size "
            f"= {machine.gpus} takes less memory, but gathers weights over the link"
        )
    elif nodes and chosen.stage >= 2:
        yield (
            f"over slow links between nodes, zero.shard_size = {machine.ranks_of_node} gathers "
            "weights only inside a node, if that fits; otherwise stage 1 sends the fewest bytes"
        )
    if work.model.architecture is None:
        yield "activations are not counted: keep memory free for them, or measure a few steps"


def gib_text(count: int) -> str:
    """Return a number of bytes as text in GiB, for a sentence."""
    return f"{count / 2**30:,.1f} GiB"
