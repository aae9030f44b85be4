"""Gradients that leave the buffers in which they were reduced leave no buffers behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.launching import TINY_LLAMA

pytestmark = pytest.mark.torch
# Gradients of 16 bits are copied out of the buffer; those of fp32 are the buffer itself.
LAYOUTS: dict[str, dict[str, Any]] = {
    "masters on the device": {"stage": 1, "precision": "bf16"},
    "masters on the host": {"stage": 0, "precision": "fp32", "offload": "cpu"},
    "replicated shards": {"stage": 2, "precision": "bf16", "offload": "cpu", "shard_size": 1},
}
BLOCKS = 16


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def storages() -> dict[int, int]:
    """fp32 bytes of every storage of this process, by address."""
    import torch

    tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
    whole = (each.untyped_storage() for each in tensors if each.dtype == torch.float32)
    return {storage.data_ptr(): storage.nbytes() for storage in whole if storage.nbytes()}


def held_last(**options: Any) -> tuple[int, int, int]:
    """fp32 bytes that the backward pass has added when its last gradients are reduced; those of all
    gradients; and those of a block's and of what is in no block."""
    import torch
    from transformers import LlamaConfig

    from zerotoolsd.trainer.engine_torch.layout import Layout
    from zerotoolsd.trainer.engine_torch.masters import Masters
    from zerotoolsd.trainer.engine_torch.memory import make_memory
    from zerotoolsd.trainer.engine_torch.sharding import shard
    from zerotoolsd.trainer.model.blueprint import draw

    layout = Layout(1, **options)
    config = {**TINY_LLAMA, "num_hidden_layers": BLOCKS}
    blueprint = draw(LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"}))
    memory = make_memory(torch.device("cpu"), layout.offload)
    model = shard(blueprint, layout, memory)
    for tensor in (*model.parameters(), *model.buffers()):
        getattr(tensor, "_local_tensor", tensor).data.fill_(0.01)
    parameters = dict(model.named_parameters())
    masters = Masters(parameters, memory, layout.stage)
    held: list[int] = []

    def note(_: Any) -> None:
        now = storages()
        held.append(sum(size for address, size in now.items() if address not in before))

    parameters["model.embed_tokens.weight"].register_post_accumulate_grad_hook(note)
    ids = torch.arange(16).view(1, 16)
    loss = model(input_ids=ids, labels=ids).loss
    before = storages()
    loss.backward()
    sizes = {name: 4 * parameter.numel() for name, parameter in masters.weights.items()}
    block = sum(size for name, size in sizes.items() if name.startswith("model.layers.0."))
    total = sum(sizes.values())
    return held[-1], total, total - (BLOCKS - 1) * block


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_buffer_outlives_the_next(name: str, alone: None) -> None:
    held, total, two_groups = held_last(**LAYOUTS[name])
    # A group's gradients are there twice, before and after they are reduced.
    assert held <= 2 * two_groups < total / 2
