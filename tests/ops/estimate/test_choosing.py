"""The table and the choice of what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.memory_layout import MemoryLayout
from zerotools.ops.estimate.activations import MicroBatch
from zerotools.ops.estimate.choosing import (
    ALL,
    NONE,
    OPTIMIZER,
    Choice,
    Workload,
    choose,
    row_of_layout,
    rows_of,
)
from zerotools.ops.estimate.model_shape import read_shape
from zerotools.ops.estimate.terms import Machine

GIB = 1 << 30
SEVEN = read_shape("7B")
WORK = Workload(SEVEN, MemoryLayout(stage=3, world_size=8), MicroBatch(1, 2048))


def chosen(gpu_gib: int, host_gib: int = 2000, work: Workload = WORK) -> Choice:
    machine = Machine(work.layout.world_size, gpu_gib * GIB, host_gib * GIB)
    return choose(work, machine, rows_of(work, machine))


@pytest.mark.parametrize(
    ("gpu_gib", "stage", "offload"),
    [(192, 0, NONE), (50, 1, NONE), (35, 3, NONE), (22, 3, OPTIMIZER), (18, 3, ALL)],
)
def test_the_first_that_fits_is_taken(gpu_gib: int, stage: int, offload: str) -> None:
    row = chosen(gpu_gib).row
    assert row is not None
    assert (row.stage, row.offload) == (stage, offload)


def test_the_reason_has_the_numbers_of_the_one_before() -> None:
    assert chosen(192).reason == "stage 0 is the fastest that fits: nothing needs to be sharded"
    assert "stage 0 takes 1" in chosen(50).reason
    assert "of a GPU's 50.0 GiB" in chosen(50).reason


def test_the_host_may_be_too_small() -> None:
    assert chosen(22, host_gib=30).row is None
    machine = Machine(8, 22 * GIB, 30 * GIB)
    rows = rows_of(WORK, machine)
    assert [row.fits for row in rows if row.offload != NONE] == [False] * 5


def test_where_nothing_fits_it_says_what_would() -> None:
    work = replace(WORK, model=read_shape("70B"), micro=MicroBatch(1, 2048, checkpointing=True))
    nothing = chosen(24, host_gib=200, work=work)
    assert nothing.row is None
    assert nothing.reason.startswith("nothing fits: stage 3 with weights and optimizer in host")
    would = "such GPUs would do, at stage 3 with activation checkpointing"
    assert nothing.advice == (f"128 {would}",)


def test_checkpointing_is_named_where_it_would_do() -> None:
    long = replace(WORK, micro=MicroBatch(1, 16384))
    assert "with --activation-checkpointing stage" in chosen(40, work=long).advice[0]


def test_a_layer_that_does_not_fit_needs_tensor_parallelism() -> None:
    machine = Machine(8, GIB // 4, 2000 * GIB)
    found = choose(WORK, machine, rows_of(WORK, machine))
    assert "share it among GPUs by zero.tensor_ranks" in found.advice[0]


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    machine = Machine(8, 60 * GIB, 2000 * GIB)
    found = choose(WORK, machine, rows_of(WORK, machine))
    assert found.row is not None
    assert found.largest_batch
    assert found.largest_sequence
    for batch, fits in ((found.largest_batch, True), (found.largest_batch + 1, False)):
        work = replace(WORK, micro=MicroBatch(batch, 2048))
        row = row_of_layout(work, machine, found.row.layout, found.row.offload)
        assert row.fits is fits


def test_one_gpu_has_nobody_to_share_with() -> None:
    alone = replace(WORK, layout=replace(WORK.layout, world_size=1))
    machine = Machine(1, 80 * GIB, 2000 * GIB)
    rows = rows_of(alone, machine)
    assert [(row.stage, row.offload) for row in rows] == [(0, NONE), (0, OPTIMIZER), (3, ALL)]
    assert len(rows_of(alone, machine, stages=(2,))) == 2


def test_without_activations_nothing_is_promised() -> None:
    unknown = replace(WORK, model=replace(SEVEN, architecture=None))
    found = chosen(192, work=unknown)
    assert found.row is not None
    assert found.row.fits is None
    assert found.largest_batch is None
    assert "activations are unknown" in found.advice[-1]


def test_more_memory_never_asks_for_more_sharding() -> None:
    order = {(row.stage, row.offload): at for at, row in enumerate(rows_of(WORK, Machine(8, 1, 1)))}
    before = len(order)
    for gpu_gib in range(10, 200, 5):
        row = chosen(gpu_gib).row
        now = len(order) if row is None else order[row.stage, row.offload]
        assert now <= before
        before = now


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
        rows = rows_of(Workload(SEVEN, layout, micro), machine)
        return {(row.stage, row.offload): row.memory.peak for row in rows}

    now = peaks(batch, sequence, ranks)
    assert now
    for more in (peaks(batch + 1, sequence, ranks), peaks(batch, sequence + 1, ranks)):
        assert {key for key in now if more[key] < now[key]} == set()
    of_more = peaks(batch, sequence, 2 * ranks)
    assert {key for key in now if of_more[key] > now[key]} == set()
