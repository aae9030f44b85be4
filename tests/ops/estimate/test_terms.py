"""Terms of one rank, and the most of them at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.memory_layout import DEVICE, HOST, SHARDED, MemoryLayout
from zerotools.ops.estimate.activations import Activations
from zerotools.ops.estimate.architecture import architecture_of
from zerotools.ops.estimate.state import bytes_at, torch_engine_state
from zerotools.ops.estimate.terms import NOT_MEASURED, Buckets, rank_memory

LLAMA = architecture_of(config("llama"), "config")
assert LLAMA is not None
PARAMETERS = LLAMA.parameters()
LAYOUT = MemoryLayout(stage=3, world_size=2)
FEW, MANY = Activations(100, 20, 30, 25), Activations(10**9, 20, 30, 25)


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
    assert not set(NOT_MEASURED) & set(rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=False).device)
    found = rank_memory(PARAMETERS, LAYOUT, FEW, on_gpu=True)
    assert all(found.device[term] > 0 for term in NOT_MEASURED)
    alone = rank_memory(PARAMETERS, replace(LAYOUT, world_size=1), FEW, on_gpu=True)
    assert alone.device["NCCL"] == 0


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
