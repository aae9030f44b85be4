"""Terms of one rank, and the most of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.training_memory_layout import (
    DEVICE,
    HOST,
    LOCAL,
    SHARDED,
    UPDATE_BUCKET_BYTES,
    MemoryLayout,
)
from zerotools.ops.estimate.activation_memory import Activations
from zerotools.ops.estimate.model_families import architecture_of
from zerotools.ops.estimate.rank_memory import (
    CPU_PROCESS_BYTES,
    CUDA_CONTEXT,
    NCCL_BUFFERS,
    NOT_MEASURED,
    PROCESS_BYTES,
    Buckets,
    RankMemory,
    held_by,
    with_activations,
)
from zerotools.ops.estimate.state_memory import (
    Parameter,
    bytes_at,
    torch_engine_state,
    update_buffer,
)

LLAMA = architecture_of(config("llama"), "config")
assert LLAMA is not None
PARAMETERS = LLAMA.parameters()
LAYOUT = MemoryLayout(stage=3, world_size=2)
FEW, MANY = Activations(100, 20, 30, 25), Activations(10**9, 20, 30, 25)


def rank_memory(
    parameters: Sequence[Parameter],
    layout: MemoryLayout,
    activations: Activations | None,
    *,
    on_gpu: bool,
    buckets: Buckets | None = None,
) -> RankMemory:
    held = held_by(parameters, layout, buckets or Buckets(), on_gpu=on_gpu)
    return with_activations(held, layout, activations, on_gpu=on_gpu)


def test_the_state_is_that_of_the_engine() -> None:
    state = torch_engine_state(PARAMETERS, LAYOUT)
    found = rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=False)
    terms = ("weights", "gradients", "optimizer")
    assert sum(found.device[term] for term in terms) == bytes_at(state, DEVICE)
    offloaded = replace(LAYOUT, offload_optimizer="cpu")
    state = torch_engine_state(PARAMETERS, offloaded)
    found = rank_memory(PARAMETERS, offloaded, FEW, on_gpu=False)
    assert sum(found.host[term] for term in terms) == bytes_at(state, HOST)


def test_gradients_and_activations_take_turns() -> None:
    few = rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=False)
    none = rank_memory(PARAMETERS, LAYOUT, Activations(0, 0, 0, 0), on_gpu=False)
    many = rank_memory(PARAMETERS, LAYOUT, MANY, on_gpu=False)
    gradients = few.device["gradients"]
    assert few.peak == none.peak + 25  # the last block, when all gradients are there
    assert many.peak == none.peak - gradients + 10**9 + 30


def test_sums_of_micro_batches_are_there_all_the_time() -> None:
    summed = replace(LAYOUT, accumulate=SHARDED)
    many = rank_memory(PARAMETERS, summed, MANY, on_gpu=False)
    none = rank_memory(PARAMETERS, summed, Activations(0, 0, 0, 0), on_gpu=False)
    assert many.peak == none.peak + 10**9 + 30


def test_only_a_gpu_has_a_context() -> None:
    terms = {"CUDA context": CUDA_CONTEXT, "NCCL": NCCL_BUFFERS}
    assert not {*terms, *NOT_MEASURED} & set(
        rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=False).device
    )
    for world_size in (1, 2):  # one rank opens a communicator, too
        layout = replace(LAYOUT, world_size=world_size)
        found = rank_memory(PARAMETERS, layout, FEW, on_gpu=True)
        assert found.device.items() >= terms.items()
        assert all(found.device[term] > 0 for term in NOT_MEASURED)
        assert found.host["process"] == PROCESS_BYTES


def test_without_tensors_a_rank_takes_what_one_held_on_an_h200() -> None:
    device, host = 1360 << 20, (1170 << 20, 1262 << 20)
    assert abs(CUDA_CONTEXT + NCCL_BUFFERS - device) < 0.01 * device
    assert host[0] <= PROCESS_BYTES <= host[1]
    assert NOT_MEASURED == ("allocator",)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_has_its_buckets(stage: int) -> None:
    layout = replace(LAYOUT, stage=stage, engine="deepspeed")
    count = sum(parameter.numel for parameter in PARAMETERS)
    found = rank_memory(PARAMETERS, layout, FEW, on_gpu=False, buckets=Buckets(reduce=100))
    assert found.device["reduce buffers"] == 2 * 2 * 100
    large = rank_memory(PARAMETERS, layout, FEW, on_gpu=False)
    assert large.device["reduce buffers"] == 2 * 2 * count


def test_without_activations_the_peak_is_the_least_that_it_can_be() -> None:
    found = rank_memory(PARAMETERS, LAYOUT, None, on_gpu=False)
    assert not found.knows_activations
    assert found.peak <= rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=False).peak


def test_gradients_of_16_bits_are_widened_a_bucket_at_a_time() -> None:
    """The device has the buffer where it has the masters; the host where they are there."""
    alone = MemoryLayout(stage=0, world_size=1, precision="bf16")
    trained = [each.numel for each in PARAMETERS if each.is_trained]
    assert 4 * sum(trained) < UPDATE_BUCKET_BYTES  # one bucket
    found = rank_memory(PARAMETERS, alone, FEW, on_gpu=False)
    assert found.device["update buffer"] == 4 * sum(trained)
    fp32 = rank_memory(PARAMETERS, replace(alone, precision="fp32"), FEW, on_gpu=False)
    summed = rank_memory(PARAMETERS, replace(alone, accumulate=SHARDED), FEW, on_gpu=False)
    assert "update buffer" not in {**fp32.device, **summed.device}
    offloaded = replace(alone, offload_optimizer="cpu")
    assert rank_memory(PARAMETERS, offloaded, FEW, on_gpu=False).host["update buffer"]
    large = [Parameter((1 << 20, 64)), Parameter((4, 4)), Parameter((1 << 18, 64))]
    assert update_buffer(large, alone) == 4 << 26
    assert update_buffer(large[1:], replace(alone, stage=1, world_size=2)) == 2 * (64 << 18)


@pytest.mark.parametrize("change", [{}, {"precision": "fp32"}, {"frozen_precision": "train"}])
def test_alone_nothing_is_gathered_and_nothing_costs_more(change: dict[str, Any]) -> None:
    layout = replace(MemoryLayout(stage=3, world_size=1), **change)
    assert not layout.is_sharded
    assert layout.has_masters == (layout.precision != "fp32")
    found = rank_memory(PARAMETERS, layout, FEW, on_gpu=True)
    assert found.device["gathered weights"] == 0
    assert "prefetch" not in found.device
    count = sum(parameter.numel for parameter in PARAMETERS)
    state = torch_engine_state(PARAMETERS, layout)
    assert bytes_at(state, DEVICE) == 16 * count


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 2},
        {"offload_params": "cpu"},
        {"accumulate": SHARDED},
        {"has_adapters": True},
        {"stage": 1, "accumulate": LOCAL},
    ],
)
def test_what_needs_fsdp2_has_it(change: dict[str, Any]) -> None:
    """Several ranks, weights on the host, and 16 bits where masters of its own would cost memory or
    change what is summed."""
    layout = replace(MemoryLayout(stage=3, world_size=1), **change)
    assert layout.is_sharded
    assert rank_memory(PARAMETERS, layout, FEW, on_gpu=False).device["gathered weights"] > 0


def test_what_fsdp2_moves_is_of_the_largest_group_that_it_gathers() -> None:
    blocks = [Parameter((100, 10), block="0"), Parameter((30, 10), block=None)]
    base = [replace(each, is_trained=False) for each in blocks]
    adapter = Parameter((10, 4), block="0")
    two = rank_memory(blocks, LAYOUT, FEW, on_gpu=False).device
    assert (two["prefetch"], two["reduce buffers"]) == (2 * 1000, 1000 * (2 + 4 + 4))
    gpu = rank_memory(blocks, LAYOUT, FEW, on_gpu=True).device
    assert (gpu["prefetch"], gpu["reduce buffers"]) == (2 * 1000, 1000 * (2 + 4))
    one = replace(LAYOUT, world_size=1, has_adapters=True)
    adapted = rank_memory([*base, adapter], one, FEW, on_gpu=True).device
    assert (adapted["prefetch"], adapted["reduce buffers"]) == (2 * 1040, 40 * (2 + 4))


def test_a_process_on_the_cpu_holds_more_than_its_tensors() -> None:
    found = rank_memory(PARAMETERS, LAYOUT, MANY, on_gpu=False).host
    assert found["process"] == CPU_PROCESS_BYTES
    going = 10**9 + 30
    assert 0.15 * going < found["allocator"] < 0.16 * going
    assert "allocator" not in rank_memory(PARAMETERS, LAYOUT, MANY, on_gpu=True).host
