"""The table: every stage with every offload."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.ops.estimate.activation_memory import MicroBatch
from zerotools.ops.estimate.offload_table import (
    ALL,
    ALL_DISK,
    DISK,
    NONE,
    OPTIMIZER,
    PARAMS,
    Workload,
    row_of,
    rows_of,
)
from zerotools.ops.estimate.parameter_shapes import read_shape
from zerotools.ops.estimate.rank_memory import Machine

GIB = 1 << 30
SEVEN, SMALL = read_shape("7B"), read_shape("125M")
WORK = Workload(SEVEN, MemoryLayout(stage=3, world_size=8), MicroBatch(1, 2048))


def test_offload_needs_the_hosts_memory_and_the_disk_does_not() -> None:
    rows = rows_of(WORK, Machine(8, 22 * GIB, 30 * GIB))
    fits = {row.offload for row in rows if row.memory.peak <= 22 * GIB and row.fits}
    assert fits == {DISK}
    assert all(row.memory.disk > 0 for row in rows if row.offload in (DISK, ALL_DISK))


def test_one_gpu_has_nobody_to_share_with() -> None:
    alone = replace(WORK, layout=replace(WORK.layout, world_size=1))
    machine = Machine(1, 80 * GIB, 2000 * GIB)
    rows = rows_of(alone, machine)
    kinds = [(0, NONE), (0, OPTIMIZER), (3, ALL), (0, DISK), (3, ALL_DISK)]
    assert [(row.stage, row.offload) for row in rows] == kinds
    assert len(rows_of(alone, machine, stages=(2,))) == 3


def test_deepspeed_has_its_own_kinds() -> None:
    work = replace(WORK, layout=replace(WORK.layout, engine="deepspeed"))
    kinds = [(row.stage, row.offload) for row in rows_of(work, Machine(8, 80 * GIB, 2000 * GIB))]
    assert [stage for stage, offload in kinds if offload == OPTIMIZER] == [1, 2, 3]
    assert {stage for stage, offload in kinds if offload in (PARAMS, DISK, ALL_DISK)} == {3}


def test_deepspeed_computes_the_loss_whole_at_stage_3() -> None:
    """As a job of it does: a size and a job file have one answer."""
    machine, long = Machine(8, 80 * GIB, 2000 * GIB), MicroBatch(4, 4096)
    layout = replace(WORK.layout, engine="deepspeed")
    loss = {
        stage: row_of(replace(WORK, layout=layout, micro=long), machine, stage, NONE)
        for stage in (2, 3)
    }
    assert loss[3].memory.device["loss"] > loss[2].memory.device["loss"]


def test_a_cpu_keeps_what_is_not_on_disk_in_the_same_memory() -> None:
    rows = rows_of(WORK, Machine(8, 0, 2000 * GIB, on_gpu=False))
    assert {row.offload for row in rows} == {NONE, DISK}


@given(st.data())
def test_more_to_compute_takes_no_less_and_more_ranks_hold_no_more(data: st.DataObject) -> None:
    """Of every stage and offload, with any batch, sequence, precision and checkpointing; with
    `auto`, a larger loss is computed in chunks, and is smaller then. One rank sends nothing."""
    batch, sequence = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 4096))
    checkpointing = data.draw(st.booleans())
    chunked_loss = data.draw(st.sampled_from(["on", "off"]))
    ranks = data.draw(st.integers(2, 32))
    precision = data.draw(st.sampled_from(["bf16", "fp16", "fp32"]))

    def peaks(batch: int, sequence: int, ranks: int) -> dict[tuple[int, str], int]:
        layout = replace(WORK.layout, world_size=ranks, precision=precision)
        micro = MicroBatch(batch, sequence, precision, checkpointing, chunked_loss=chunked_loss)
        machine = Machine(ranks, 80 * GIB, 2000 * GIB)
        rows = rows_of(Workload(SMALL, layout, micro), machine)
        return {(row.stage, row.offload): row.memory.peak for row in rows}

    now = peaks(batch, sequence, ranks)
    assert now
    for more in (peaks(batch + 1, sequence, ranks), peaks(batch, sequence + 1, ranks)):
        assert {key for key in now if more[key] < now[key]} == set()
    of_more = peaks(batch, sequence, 2 * ranks)
    assert {key for key in now if of_more[key] > now[key]} == set()
