"""State bytes per rank: the paper's arithmetic, and what the engine's layout comes to."""

from __future__ import annotations

import pytest

from zerotools.core.training_memory_layout import (
    DEVICE,
    DISK,
    GRADIENTS,
    HOST,
    ITEM_BYTES,
    MASTERS,
    MOMENTS,
    WEIGHTS,
    MemoryLayout,
)
from zerotools.ops.estimate.state_memory import (
    Parameter,
    bytes_at,
    gathered_bytes,
    nvme_offload_state,
    optimizer_state_of_all_ranks,
    textbook_state,
    torch_engine_state,
)

MODEL = [
    Parameter((96, 8)),
    *(Parameter((24, 8), block=f"layers.{number}") for number in range(4)),
    *(Parameter((12,), block=f"layers.{number}") for number in range(4)),
]
NUMEL = 96 * 8 + 4 * (24 * 8 + 12)


@pytest.mark.parametrize(
    ("stage", "each"), [(0, 16), (1, 4 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)]
)
def test_the_textbook_has_16_bytes_per_parameter(stage: int, each: float) -> None:
    assert bytes_at(textbook_state(MODEL, MemoryLayout(stage, 4)), DEVICE) == NUMEL * each


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deepspeeds_files_have_masters_and_gradients_too(precision: str) -> None:
    """Measured: 2,101,248 bytes of each of three and two of gradients, for 525,312 parameters."""
    layout = MemoryLayout(3, 2, precision, offload_optimizer="disk", offload_params="disk")
    weights = ITEM_BYTES[layout.precision] * NUMEL / 2
    assert bytes_at(nvme_offload_state(MODEL, layout), DISK) == 16 * NUMEL / 2 + weights
    assert bytes_at(nvme_offload_state(MODEL, layout), DEVICE) == 0


def test_the_textbook_of_fp32_has_no_masters() -> None:
    found = textbook_state(MODEL, MemoryLayout(0, 1, "fp32"))
    assert found[DEVICE, MASTERS] == 0
    assert bytes_at(found, DEVICE) == 16 * NUMEL


def test_the_tutorials_6_billion_parameters() -> None:
    """The optimizer's state is 72 GB and not 24; 96 GB in all."""
    found = textbook_state([Parameter((6_000_000, 1000))], MemoryLayout(0, 1))
    assert found[DEVICE, MASTERS] + found[DEVICE, MOMENTS] == 72e9
    assert bytes_at(found, DEVICE) == 96e9


@pytest.mark.parametrize(
    ("layout", "each"),
    [
        (MemoryLayout(0, 2), 4 + 4 + 8),
        (MemoryLayout(1, 2), 2 + (2 + 4 + 8) / 2),
        (MemoryLayout(1, 2, "fp32"), 4 + 4 + 8 / 2),
        (MemoryLayout(2, 2), 16 / 2),
        (MemoryLayout(3, 2), 16 / 2),
        (MemoryLayout(3, 4, shard_size=2), 16 / 2),
        (MemoryLayout(3, 2, optimizer="sgd"), 12 / 2),
        (MemoryLayout(3, 2, optimizer="sgd", has_momentum=False), 8 / 2),
    ],
)
def test_what_the_engine_keeps_on_the_device(layout: MemoryLayout, each: float) -> None:
    found = torch_engine_state(MODEL, layout)
    assert bytes_at(found, DEVICE) == sum(found.values()) == NUMEL * each


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("offload", "place"), [("cpu", HOST), ("disk", DISK)])
def test_an_offloaded_optimizer_leaves_16_bit_weights(stage: int, offload: str, place: str) -> None:
    found = torch_engine_state(MODEL, MemoryLayout(stage, 2, offload_optimizer=offload))
    ranks = 2 if stage else 1
    assert found[DEVICE, WEIGHTS] == bytes_at(found, DEVICE) == 2 * NUMEL / (2 if stage > 1 else 1)
    assert found[place, MASTERS] + found[place, MOMENTS] == 12 * NUMEL / ranks
    assert found[HOST, GRADIENTS] == 2 * NUMEL / ranks


@pytest.mark.parametrize(
    ("layout", "device", "host"),
    [
        (MemoryLayout(3, 2, accumulate="sharded"), 16 / 2, 0),
        (MemoryLayout(3, 2, accumulate="local"), 12 / 2 + 4, 0),
        (MemoryLayout(3, 4, shard_size=2, accumulate="sharded"), 16 / 2, 0),
        (MemoryLayout(0, 2, accumulate="local"), 16, 0),
        (MemoryLayout(1, 2, "fp32", accumulate="local"), 4 + 4 + 8 / 2, 0),
        (MemoryLayout(1, 2, accumulate="local"), 2 + 4 + 14 / 2, 0),
        (MemoryLayout(1, 2, accumulate="sharded"), 2 + 16 / 2, 0),
        (MemoryLayout(3, 2, offload_optimizer="cpu", accumulate="sharded"), 2 / 2, 16 / 2),
        (MemoryLayout(3, 2, offload_optimizer="cpu", accumulate="local"), 2 / 2 + 4, 14 / 2),
        (MemoryLayout(3, 2, offload_params="cpu", accumulate="sharded"), 0, 16 / 2),
        (MemoryLayout(3, 2, offload_params="cpu", accumulate="local"), 4, 16 / 2),
    ],
)
def test_sums_of_micro_batches_are_whole_or_the_ranks_part(
    layout: MemoryLayout, device: float, host: float
) -> None:
    found = torch_engine_state(MODEL, layout)
    assert bytes_at(found, DEVICE) == NUMEL * device
    assert bytes_at(found, HOST) == NUMEL * host


def test_offloaded_parameters_leave_nothing() -> None:
    found = torch_engine_state(MODEL, MemoryLayout(3, 2, offload_params="cpu"))
    assert (bytes_at(found, DEVICE), bytes_at(found, HOST)) == (0, 16 * NUMEL / 2)
    on_disk = torch_engine_state(
        MODEL, MemoryLayout(3, 2, offload_params="cpu", offload_optimizer="disk")
    )
    assert bytes_at(on_disk, DISK) == 8 * NUMEL / 2


def test_rows_are_rounded_up_to_the_rank_that_has_most() -> None:
    found = torch_engine_state([Parameter((5, 3))], MemoryLayout(3, 2))
    assert bytes_at(found, DEVICE) == 16 * 3 * 3


def test_cut_matrices_are_parts_and_other_weights_are_cut_among_all_ranks() -> None:
    cut = [Parameter((9, 8), cut=1, block="0"), Parameter((8, 5), cut=0, block="0")]
    whole = [Parameter((10, 3))]
    layout = MemoryLayout(3, 4, tensor_ranks=2)
    # Of 9 rows of half of the columns two ranks have 5 and 4, of 4 rows 2 each; of 10, four have 3.
    own = 5 * 4 + 2 * 5 + 3 * 3
    assert bytes_at(torch_engine_state([*cut, *whole], layout), DEVICE) == 16 * own
    assert gathered_bytes([*cut, *whole], layout) == 2 * (9 * 4 + 4 * 5 + 10 * 3)
    assert optimizer_state_of_all_ranks(cut, layout) == 8 * (9 * 8 + 8 * 5)


def test_frozen_weights_have_neither_gradients_nor_moments() -> None:
    frozen = [Parameter((8, 8), is_trained=False)]
    assert torch_engine_state(frozen, MemoryLayout(3, 2)) == {(DEVICE, WEIGHTS): 4 * 32}
    offloaded = torch_engine_state(frozen, MemoryLayout(3, 2, offload_optimizer="cpu"))
    assert offloaded == {(DEVICE, WEIGHTS): 2 * 32, (HOST, MASTERS): 4 * 32}


def test_frozen_weights_in_16_bits_are_all_there_is_of_them() -> None:
    """6.7 billion parameters in bf16: 13.5 GB, and nothing beside them but what adapters take."""
    base = Parameter((67_384, 100_000), is_trained=False)
    for layout in (
        *(MemoryLayout(stage, 1, frozen_precision="train") for stage in (0, 1, 2, 3)),
        MemoryLayout(3, 1, offload_optimizer="cpu", frozen_precision="train"),
        MemoryLayout(3, 1, offload_optimizer="disk", frozen_precision="train"),
    ):
        assert torch_engine_state([base], layout) == {(DEVICE, WEIGHTS): 13_476_800_000}
        assert optimizer_state_of_all_ranks([base], layout) == 0
    on_host = MemoryLayout(3, 2, offload_params="cpu", frozen_precision="train")
    assert torch_engine_state([base], on_host) == {(HOST, WEIGHTS): 13_476_800_000 // 2}
    adapter, layout = Parameter((8, 100)), MemoryLayout(3, 1, frozen_precision="train")
    assert bytes_at(torch_engine_state([adapter], layout), DEVICE) == 16 * 800


def test_every_rank_has_all_weights_of_4_bits() -> None:
    """6.7 billion of them: 4.127 bits each, as the paper of QLoRA counts, and a mean in all."""
    base = Parameter((67_384, 100_000), is_trained=False, is_packed=True)
    size = 3_369_200_000 + 105_287_500 + 4 * 411_280 + 4
    for layout in (
        *(MemoryLayout(stage, 2, frozen_precision="nf4") for stage in (0, 1, 2, 3)),
        MemoryLayout(3, 2, offload_optimizer="cpu", frozen_precision="nf4"),
    ):
        assert torch_engine_state([base], layout) == {(DEVICE, WEIGHTS): size}
        assert optimizer_state_of_all_ranks([base], layout) == 0
        assert bytes_at(textbook_state([base], layout), DEVICE) == size
    single = MemoryLayout(3, 2, frozen_precision="nf4", double_quant=False)
    assert bytes_at(torch_engine_state([base], single), DEVICE) == 3_369_200_000 + 4 * 105_287_500
    small = Parameter((8, 100), is_trained=False, is_packed=True)
    whole = 2 * base.numel + 4 * 105_287_500
    assert gathered_bytes([base, small], MemoryLayout(3, 2, frozen_precision="nf4")) == whole


def test_adafactor_keeps_a_row_and_a_column() -> None:
    found = torch_engine_state(
        [Parameter((8, 6)), Parameter((5,))], MemoryLayout(3, 2, optimizer="adafactor")
    )
    assert found[DEVICE, MOMENTS] == 4 * (4 + 6 + 3)
    cube = torch_engine_state([Parameter((4, 3, 5))], MemoryLayout(3, 2, optimizer="adafactor"))
    assert cube[DEVICE, MOMENTS] == 4 * (2 * 3 + 2 * 5)


def test_what_is_gathered() -> None:
    outside, block = 2 * 96 * 8, 2 * (24 * 8 + 12)
    assert gathered_bytes(MODEL, MemoryLayout(3, 2)) == outside + block
    assert gathered_bytes(MODEL, MemoryLayout(2, 2)) == outside + 4 * block
    assert gathered_bytes(MODEL, MemoryLayout(2, 2, shard_size=1)) == outside + block
    assert gathered_bytes(MODEL, MemoryLayout(2, 1)) == 0
    assert gathered_bytes(MODEL, MemoryLayout(2, 1, accumulate="sharded")) == outside + block
    assert gathered_bytes(MODEL, MemoryLayout(0, 2, "fp32")) == 2 * (outside + block)
