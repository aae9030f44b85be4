"""The search of what makes a training fit, and the choice among it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.matrices import examples
from tests.ops.estimate.tiny_configs import config
from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.ops.estimate.activation_memory import MicroBatch
from zerotools.ops.estimate.fit_search import (
    AllowedChanges,
    FitChange,
    Slowdown,
    Way,
    Ways,
    ways_of,
)
from zerotools.ops.estimate.model_families import FAMILIES
from zerotools.ops.estimate.offload_table import (
    NONE,
    OFFLOADS,
    OPTIMIZER,
    Workload,
    row_of_layout,
    rows_of,
)
from zerotools.ops.estimate.parameter_shapes import of_config, read_shape, with_adapters
from zerotools.ops.estimate.rank_memory import Machine
from zerotools.ops.estimate.recommendation import Choice, choose_cheapest

GIB = 1 << 30
SEVEN, THIRTEEN = read_shape("7B"), read_shape("13B")
WORK = Workload(SEVEN, MemoryLayout(stage=3, world_size=8), MicroBatch(1, 2048))
CARDS = Workload(THIRTEEN, MemoryLayout(stage=3, world_size=4), MicroBatch(1, 2048))
ADAPTERS = AllowedChanges(adapters=True, packed=True)
EIGHT_BIT, CHECKPOINTING = FitChange.EIGHT_BIT, FitChange.CHECKPOINTING


def found(
    work: Workload, gpu_gib: float, host_gib: float, allowed: AllowedChanges | None = None
) -> Ways:
    machine = Machine(work.layout.world_size, int(gpu_gib * GIB), int(host_gib * GIB))
    return ways_of(work, machine, allowed)


def chosen(gpu_gib: float, host_gib: float = 2000, work: Workload = WORK) -> Choice:
    machine = Machine(work.layout.world_size, int(gpu_gib * GIB), int(host_gib * GIB))
    return choose_cheapest(work, machine, rows_of(work, machine), ways_of(work, machine))


def test_a_13b_model_fits_on_four_small_cards_in_several_ways() -> None:
    """Cheapest first, each with all that it needs and nothing more."""
    ways = found(CARDS, 24, 119, ADAPTERS).found
    assert [way.changes for way in ways] == [
        (CHECKPOINTING, EIGHT_BIT, FitChange.OPTIMIZER_ON_HOST),
        (CHECKPOINTING, FitChange.OPTIMIZER_ON_DISK),
        (CHECKPOINTING, FitChange.LORA),
        (CHECKPOINTING, FitChange.MORE_GPUS),
    ]
    assert [way.slowdown for way in ways] == [
        Slowdown.DOUBLE,
        Slowdown.SEVERAL,
        Slowdown.THIRD,
        Slowdown.THIRD,
    ]
    disk = ways[1]
    assert disk.disk_bytes == pytest.approx(12 * THIRTEEN.count, rel=0.01)
    assert disk.words == "activation checkpointing and the optimizer on disk"
    assert [way.is_as_asked for way in ways] == [True, True, False, False]
    assert ways[3].row.layout.world_size == 16


def test_weights_on_the_host_and_the_optimizer_on_disk_are_the_last_resort() -> None:
    work = replace(CARDS, layout=replace(CARDS.layout, world_size=1))
    way = found(work, 10, 119).found[0]
    moved = {FitChange.WEIGHTS_ON_HOST, FitChange.OPTIMIZER_ON_DISK}
    assert moved <= set(way.changes)
    assert (way.row.layout.offload_params, way.row.layout.offload_optimizer) == ("cpu", "disk")


def test_no_set_contains_another() -> None:
    ways = found(CARDS, 24, 119, ADAPTERS).found
    assert not any(
        set(one.changes) < set(other.changes) for one in ways for other in ways if one != other
    )


def test_what_fits_as_it_is_needs_no_change() -> None:
    ways = found(WORK, 80, 500, ADAPTERS).found
    assert [way.changes for way in ways] == [()]
    assert ways[0].slowdown is Slowdown.NONE


def test_the_micro_batch_is_the_largest_that_fits() -> None:
    again = replace(WORK, micro=MicroBatch(64, 2048, checkpointing=True))
    way = found(again, 45, 30, AllowedChanges(offloads=(NONE,))).found[0]
    assert way.changes == (FitChange.MICRO_BATCH,)
    micro = way.work.micro
    assert micro is not None
    assert 64 % micro.batch == 0
    assert way.row.layout.accumulate in ("sharded", "local")
    larger = replace(way.work, micro=replace(micro, batch=2 * micro.batch))
    machine = Machine(8, 45 * GIB, 30 * GIB)
    assert not row_of_layout(larger, machine, way.row.layout, NONE).fits


def test_pairs_of_answers_stay_together() -> None:
    work = replace(WORK, micro=MicroBatch(8, 2048, checkpointing=True, per_example=2))
    ways = found(work, 22, 30, AllowedChanges(offloads=(NONE,)))
    batches = [way.work.micro.batch for way in ways.found if way.work.micro is not None]
    assert all(batch % 2 == 0 for batch in batches)


def test_fewer_gpus_where_the_host_is_too_small_for_more_processes() -> None:
    small = Workload(
        of_config(config("llama"), "tiny", None),
        MemoryLayout(stage=3, world_size=8),
        MicroBatch(1, 64),
    )
    way = found(small, 24, 5).found[0]
    assert way.changes == (FitChange.FEWER_GPUS,)
    assert way.row.layout.world_size == 4
    assert way.words == "4 GPUs"


def test_ranks_compute_together_where_nothing_else_helps() -> None:
    long = replace(CARDS, micro=MicroBatch(1, 64_000, checkpointing=True))
    way = found(long, 24, 119, AllowedChanges(adapters=True)).found[0]
    assert FitChange.SEQUENCE_RANKS in way.changes
    assert "4 ranks for each sequence" in way.words or "2 ranks for each sequence" in way.words
    wide = Workload(
        of_config(
            {
                **config("llama"),
                "hidden_size": 65536,
                "num_attention_heads": 512,
                "num_key_value_heads": 512,
                "head_dim": 128,
                "intermediate_size": 262144,
                "num_hidden_layers": 2,
            },
            "wide",
            None,
        ),
        MemoryLayout(stage=3, world_size=8),
        MicroBatch(1, 128),
    )
    cut = [way for way in found(wide, 190, 2000).found if FitChange.TENSOR_RANKS in way.changes]
    assert cut
    assert cut[0].row.layout.tensor_ranks > 1
    assert cut[0].row.layout.optimizer != "adamw8bit"


def test_adapters_are_offered_only_beside_weights() -> None:
    for allowed in (AllowedChanges(), AllowedChanges(packed=True)):
        assert all(FitChange.LORA not in way.changes for way in found(CARDS, 24, 30, allowed).found)
    packed = {way.changes for way in found(CARDS, 10.5, 10, ADAPTERS).found}
    assert any(FitChange.PACKED in changes for changes in packed)
    trained = replace(CARDS, model=with_adapters(THIRTEEN, 8))
    assert all(FitChange.LORA not in way.changes for way in found(trained, 8.5, 10, ADAPTERS).found)


def test_where_nothing_fits_the_nearest_is_named() -> None:
    work = replace(WORK, model=read_shape("70B"), layout=replace(WORK.layout, world_size=1))
    nothing = found(work, 8, 9, ADAPTERS)
    assert nothing.best is None
    assert nothing.nearest is not None
    one = Machine(1, 8 * GIB, 9 * GIB)
    choice = choose_cheapest(work, one, rows_of(work, one), nothing)
    assert choice.row is None
    assert choice.reason.startswith("nothing fits: the nearest is stage ")
    assert "of a GPU's 8.0 GiB" in choice.reason
    assert "take GPUs with more memory" in choice.advice[0]


@pytest.mark.parametrize(
    ("gpu_gib", "stage", "offload"),
    [(192, 0, NONE), (50, 1, NONE), (35, 3, NONE), (12, 3, OPTIMIZER)],
)
def test_the_cheapest_is_chosen(gpu_gib: int, stage: int, offload: str) -> None:
    row = chosen(gpu_gib).row
    assert row is not None
    assert (row.stage, row.offload) == (stage, offload)


def test_the_reason_has_the_numbers_of_the_one_before() -> None:
    assert chosen(192).reason == "stage 0 is the fastest that fits: nothing needs to be sharded"
    assert "stage 0 takes 1" in chosen(50).reason
    assert "of a GPU's 50.0 GiB" in chosen(50).reason
    again = chosen(21).reason
    assert "with activation checkpointing is the fastest that fits: without this, stage 3" in again
    assert "of a GPU's 21.0 GiB" in again


def test_a_layer_that_does_not_fit_needs_tensor_parallelism() -> None:
    assert "GiB; divide it among GPUs with zero.tensor_ranks" in chosen(0.25).advice[0]


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    machine = Machine(8, 60 * GIB, 2000 * GIB)
    choice = chosen(60)
    assert choice.row is not None
    assert choice.largest_batch
    assert choice.largest_sequence
    for batch, fits in ((choice.largest_batch, True), (choice.largest_batch + 1, False)):
        work = replace(WORK, micro=MicroBatch(batch, 2048))
        row = row_of_layout(work, machine, choice.row.layout, choice.row.offload)
        assert row.fits is fits


def test_without_activations_nothing_is_promised() -> None:
    unknown = replace(WORK, model=replace(SEVEN, architecture=None))
    choice = chosen(192, work=unknown)
    assert choice.row is not None
    assert choice.row.fits is None
    assert choice.largest_batch is None
    assert "activations are not counted" in choice.advice[-1]


def cost(way: Way | None) -> int:
    """The place of a way in the order of the search; the larger, the dearer. Of ways with another
    number of ranks there are several, of which the first is taken."""
    if way is None:
        return 1 << len(FitChange)
    places = [list(FitChange).index(change) for change in way.changes]
    together = list(FitChange).index(FitChange.SEQUENCE_RANKS)
    if max(places, default=0) >= together:
        return 1 << together
    return sum(1 << place for place in places)


OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit")
ALLOWED = AllowedChanges(adapters=True, packed=True)


def tiny(family: str, **changes: Any) -> Any:
    return of_config({**config(family), **changes}, family, None)


SHAPES = {family: tiny(family) for family in FAMILIES}


@settings(
    max_examples=examples(40), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    trained_by=st.tuples(
        st.sampled_from(OPTIMIZERS), st.sampled_from(["torch", "torch", "deepspeed"])
    ),
    machine=st.tuples(st.integers(1, 9), st.integers(521, 900), st.integers(690, 8000)),
    batch=st.integers(1, 12),
    more=st.integers(1, 200),
    less_offload=st.sets(st.sampled_from(OFFLOADS)),
    what=st.sampled_from(["gpu memory", "host memory", "offload", "cards", "batch"]),
)
def test_more_memory_cards_or_offload_never_turn_yes_into_no(
    family: str,
    trained_by: tuple[str, str],
    machine: tuple[int, int, int],
    batch: int,
    more: int,
    less_offload: set[str],
    what: str,
) -> None:
    """Nor does a smaller batch; and more memory is never answered with a dearer way.

    `machine` is the number of GPUs, and the MiB of each and of the host.
    """
    (optimizer, engine), (gpus, gpu_mib, host_mib) = trained_by, machine
    micro = MicroBatch(batch, 64)
    layout = MemoryLayout(stage=3, world_size=gpus, optimizer=optimizer, engine=engine)
    offloads = tuple(each for each in OFFLOADS if each not in less_offload or each == NONE)

    def best(
        gpu_mib: int, host_mib: int, micro: MicroBatch, layout: MemoryLayout, *kinds: str
    ) -> Way | None:
        machine = Machine(layout.world_size, gpu_mib << 20, host_mib << 20)
        work = Workload(SHAPES[family], layout, micro)
        return ways_of(work, machine, replace(ALLOWED, offloads=kinds)).best

    now = best(gpu_mib, host_mib, micro, layout, *offloads)
    match what:
        case "gpu memory":
            then = best(gpu_mib + more, host_mib, micro, layout, *offloads)
        case "host memory":
            then = best(gpu_mib, host_mib + 10 * more, micro, layout, *offloads)
        case "offload":
            then = best(gpu_mib, host_mib, micro, layout, *OFFLOADS)
        case "cards":
            larger = replace(layout, world_size=gpus + 1)
            then = best(gpu_mib, host_mib, micro, larger, *offloads)
        case _:
            smaller = replace(micro, batch=max(1, batch - more % batch))
            then = best(gpu_mib, host_mib, smaller, layout, *offloads)
    assert now is None or then is not None
    if what in ("gpu memory", "host memory"):
        assert cost(then) <= cost(now)
