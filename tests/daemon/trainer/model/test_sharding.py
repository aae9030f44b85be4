"""What a rank lets go of in the passes: buffers that gradients have left, copies of weights."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.launching import TINY_LLAMA
from zerotools.core.training_memory_layout import MemoryLayout

pytestmark = pytest.mark.torch
# Gradients of 16 bits are copied out of the buffer; those of fp32 are the buffer itself.
LAYOUTS: dict[str, dict[str, Any]] = {
    "masters on the device": {"stage": 1, "precision": "bf16"},
    "masters on the host": {"stage": 0, "precision": "fp32", "offload_optimizer": "cpu"},
    "replicated shards": {
        "stage": 2,
        "precision": "bf16",
        "offload_optimizer": "cpu",
        "shard_size": 1,
    },
}
BLOCKS = 16


def sharded(**options: Any) -> tuple[Any, Any, Any]:
    """A model of this process alone under FSDP2, its memory, and its layout."""
    import torch
    from transformers import LlamaConfig

    from zerotools.core.training_memory_layout import MemoryLayout
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.model.meta_model import make_meta_model
    from zerotoolsd.trainer.model.sharding import shard_model

    class Sharded(MemoryLayout):
        is_sharded = True  # a rank that is alone has the buffers of several

    layout = Sharded(world_size=1, **options)
    config = {**TINY_LLAMA, "num_hidden_layers": BLOCKS}
    meta_model = make_meta_model(
        LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"})
    )
    memory = make_memory(torch.device("cpu"), layout.state_tier)
    model = shard_model(meta_model, layout, memory)
    for tensor in (*model.parameters(), *model.buffers()):
        getattr(tensor, "_local_tensor", tensor).data.fill_(0.01)
    return model, memory, layout


def loss_of(model: Any) -> Any:
    import torch

    ids = torch.arange(16).view(1, 16)
    return model(input_ids=ids, labels=ids).loss


def storages() -> dict[int, int]:
    """fp32 bytes of every storage of this process, by address."""
    import torch

    gc.collect()  # what tests before this one have left in cycles may go at any time
    tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
    whole = (each.untyped_storage() for each in tensors if each.dtype == torch.float32)
    return {storage.data_ptr(): storage.nbytes() for storage in whole if storage.nbytes()}


def held_last(**options: Any) -> tuple[int, int, int]:
    """fp32 bytes that the backward pass has added when its last gradients are reduced; those of all
    gradients; and those of a block's and of what is in no block."""
    from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights

    model, memory, layout = sharded(**options)
    parameters = dict(model.named_parameters())
    masters = MasterWeights(parameters, memory, layout)
    held: list[int] = []

    def note(_: Any) -> None:
        now = storages()
        held.append(sum(size for address, size in now.items() if address not in before))

    parameters["model.embed_tokens.weight"].register_post_accumulate_grad_hook(note)
    loss = loss_of(model)
    before = storages()
    loss.backward()
    sizes = {name: 4 * parameter.numel() for name, parameter in masters.weights.items()}
    block = sum(size for name, size in sizes.items() if name.startswith("model.layers.0."))
    total = sum(sizes.values())
    return held[-1], total, total - (BLOCKS - 1) * block


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_buffer_outlives_the_next(name: str, threadless: None) -> None:
    held, total, two_groups = held_last(**LAYOUTS[name])
    # A group's gradients are there twice, before and after they are reduced.
    assert held <= 2 * two_groups < total / 2


@pytest.mark.parametrize("stage", [2, 3])
def test_alone_the_copy_of_a_block_goes_with_its_forward_pass(stage: int, threadless: None) -> None:
    from torch.distributed.tensor import DTensor

    model, _, _ = sharded(stage=stage, precision="bf16", offload_optimizer="cpu")
    loss = loss_of(model)
    # What is whole is a plain tensor in the module.
    kinds = {type(layer.mlp.up_proj.weight.data) for layer in model.model.layers}
    assert kinds == {DTensor}
    loss.backward()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([0, 1]),
)
def test_the_box_of_a_rank_is_the_one_that_its_memory_holds(
    data_ranks: int, tensor_ranks: int, each: int, other: int, dimension: int
) -> None:
    """`local_part` asks torch for it; what FSDP2 leaves a rank is cut first among tensor ranks, and
    then by rows among those that have the same part."""
    import torch
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
    from torch.distributed.tensor.placement_types import _StridedShard

    shape = [other, other]
    shape[dimension] = each * tensor_ranks
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    placements = (
        _StridedShard(0, split_factor=tensor_ranks) if dimension == 0 else Shard(0),
        Shard(dimension),
    )
    for data in range(data_ranks):
        for tensor in range(tensor_ranks):
            part = whole.chunk(tensor_ranks, dimension)[tensor]
            pieces = [*part.chunk(data_ranks), *[part[:0]] * data_ranks]
            size, offset = _compute_local_shape_and_global_offset(
                shape, (data_ranks, tensor_ranks), [data, tensor], placements
            )
            rows, columns = (slice(a, a + n) for a, n in zip(offset, size, strict=True))
            assert torch.equal(whole[rows, columns].flatten(), pieces[data].flatten())


def sums(model: Any) -> set[bool]:
    """Whether FSDP2 adds up gradients, of each of its groups of parameters."""
    from torch.distributed.fsdp import FSDPModule

    states = (m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule))
    groups = (getattr(s, "_fsdp_param_groups", None) or [s._fsdp_param_group] for s in states)
    return {each.force_sum_reduction_for_comms for group in groups for each in group if each}


@pytest.mark.parametrize(
    ("device", "shape", "summed"),
    [
        ("cuda", (1,), True),
        ("cuda", (4, 1), True),
        ("cuda", (1, 4), True),
        ("cuda", (2, 2), False),
        ("cpu", (2, 2), True),
    ],
)
def test_gradients_are_added_up_where_an_average_of_the_backend_is_wrong(
    threadless: None, device: str, shape: tuple[int, ...], summed: bool
) -> None:
    """NCCL's average over one rank leaves out the last elements (NVIDIA/nccl 1950), and that of
    gloo's reduce-scatter is the sum in torch 2.8."""
    from torch.distributed.fsdp import FSDPModule

    from zerotoolsd.trainer.model.sharding import sum_gradients

    model, _, _ = sharded(stage=1, precision="bf16")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(False)
    mesh: Any = SimpleNamespace(device_type=device, shape=shape)
    sum_gradients(model, mesh)
    assert sums(model) == {summed}


class Buffer:
    """A buffer on a GPU, which notes what is done with its memory."""

    is_cuda, device = True, "cuda:0"

    def __init__(self) -> None:
        self.done: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.done.append(stream)

    def untyped_storage(self) -> Any:
        return SimpleNamespace(resize_=self.done.append)


def test_the_buffer_before_is_freed_once_its_stream_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from zerotoolsd.trainer.model.sharding import _Reduced

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    hook: Any = _Reduced()
    first, second = Buffer(), Buffer()
    hook(first)
    assert first.done == []
    hook(second)
    assert first.done == ["stream of cuda:0", 0]
    del second
    hook(Buffer())  # the one before is gone already


@pytest.mark.parametrize(("device", "frees"), [("cuda", True), ("cpu", False)])
def test_parameters_on_the_host_leave_their_buffers_on_a_gpu_alone(
    device: str, frees: bool
) -> None:
    import torch
    from torch.distributed.fsdp import FSDPModule

    from zerotoolsd.trainer.model import sharding

    class Block(FSDPModule):  # type: ignore[misc]
        hook: Any = None

        def set_all_reduce_hook(self, hook: Any) -> None:
            self.hook = hook

    block = object.__new__(Block)
    layout: Any = SimpleNamespace(replicates_weights=True, has_masters=False, params_tier="host")
    assert {*vars(layout)} <= {*dir(MemoryLayout), *MemoryLayout.__dataclass_fields__}
    model = SimpleNamespace(modules=lambda: [block])
    sharding.free_reduction_buffers(model, layout, torch.device(device))
    assert (block.hook is not None) is frees
