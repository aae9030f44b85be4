"""FSDP2 over the ranks: the mesh, the sharded modules, and the memory for shards and reductions.

Stages 2 and 3 shard the weights. Stage 2 keeps the gathered weights from the forward pass to the
end of the backward pass, so it does not gather them a second time. Stages 0 and 1 replicate the
weights with the same code. So every stage has the same types and names, and a checkpoint of one
stage loads into another. With replicas, "gathering" only copies the weights on the rank itself, and
the copies are freed block by block.

With tensor ranks, the ranks are in a mesh of two dimensions, tensor ranks innermost. If tensor
ranks split a weight, FSDP2 shards each part among the ranks that have this part. All other weights
are sharded among all ranks. So each rank has the same number of bytes. A weight that is not split
stays equal on all tensor ranks, because its gradient is averaged over all ranks.

    a split matrix of 8 rows, 2 tensor ranks of 4     any other weight of 8 rows
    rank 0: rows 0-1    rank 1: rows 4-5              rank 0: rows 0-1    rank 1: rows 2-3
    rank 2: rows 2-3    rank 3: rows 6-7              rank 2: rows 4-5    rank 3: rows 6-7

A single rank has nothing to gather or reduce. If the job's `MemoryLayout` has `is_sharded` = False,
the model of a single rank is not wrapped by FSDP2. Its parameters are plain tensors, which become
DTensors only when they are saved (`as_saved`).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import tree_map

from zerotools.core.errors import Unsupported
from zerotools.core.training_memory_layout import HOST, WEIGHTS, MemoryLayout
from zerotoolsd.trainer.allocate_tensors import BUFFERS, TORCH_DTYPES, MemoryTier, MemoryTiers
from zerotoolsd.trainer.model.keep_fp32 import gathered_separately
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.nf4_linear import packed_buffers
from zerotoolsd.trainer.tensor_parallel.parallel_layers import cut_layers
from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import LayerCuts, layer_cuts

REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


def make_mesh(device: torch.device, layout: MemoryLayout) -> DeviceMesh:
    """Return the device mesh of all ranks.

    The mesh has one dimension for sharding. It has a second dimension in two cases: if the layout
    replicates weights, for the groups of ranks that hold copies; and with tensor ranks, for the
    tensor ranks. The mesh of a single rank has only this rank.
    """
    world_size, size = layout.world_size, layout.weight_ranks
    if not layout.is_sharded:
        return init_device_mesh(device.type, (world_size,))
    if layout.tensor_ranks > 1:
        shape = (world_size // layout.tensor_ranks, layout.tensor_ranks)
        return init_device_mesh(device.type, shape, mesh_dim_names=(SHARD, TENSOR))
    if layout.replicates_weights:
        shape = (world_size // size, size)
        return init_device_mesh(device.type, shape, mesh_dim_names=(REPLICATE, SHARD))
    return init_device_mesh(device.type, (world_size,), mesh_dim_names=(SHARD,))


def as_saved(tensor: torch.Tensor, mesh: DeviceMesh, *, is_cut: bool) -> DTensor:
    """Return `tensor` as the DTensor that a checkpoint of a single rank has.

    The DTensor uses the memory of `tensor`. It is a shard if the stage splits the tensor
    (`is_cut`), else a replica. `mesh` has only this rank.
    """
    placement = Shard(0) if is_cut else Replicate()
    return wrap_local(tensor.detach(), mesh, (placement,), tensor.shape)


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether each rank has the whole `tensor`, also with more ranks at the same stage."""
    if not isinstance(tensor, DTensor):
        return True
    cuts = [size for size, placement in _dimensions(tensor) if not placement.is_replicate()]
    return len(cuts) < tensor.device_mesh.ndim and all(size == 1 for size in cuts)


def cutting_groups(tensor: torch.Tensor) -> list[Any]:
    """Return the process groups over which `tensor` is split; empty if each rank has the whole
    tensor.
    """
    if not isinstance(tensor, DTensor):
        return []
    return [
        tensor.device_mesh.get_group(number)
        for number, (size, placement) in enumerate(_dimensions(tensor))
        if not placement.is_replicate() and size > 1
    ]


def _dimensions(tensor: DTensor) -> list[tuple[int, Any]]:
    return list(zip(tensor.device_mesh.shape, tensor.placements, strict=True))


def shard_model(
    meta_model: MetaModel,
    layout: MemoryLayout,
    memory: MemoryTiers,
    *,
    compiled: bool = False,
    kept: frozenset[str] = frozenset(),
) -> Any:
    """Return a copy of the meta model with DTensors as parameters.

    Their memory is not initialised. A single rank without FSDP2 has plain tensors instead. Buffers
    are not sharded. Tied parameters stay one parameter. If `compiled` is True, blocks are compiled.
    Parameters in `kept` are stored and computed in fp32.

    Raises:
        Unsupported: a module mixes `kept` parameters with others, tensor ranks cannot share the
            model, or this torch does not support tensor ranks.
        BadRequest: the number of tensor ranks does not divide the number of heads, or the size of a
            layer.
    """
    model = copy.deepcopy(meta_model.model)
    for name, parameter in model.named_parameters():
        dtype = layout.weights_dtype if parameter.requires_grad else layout.frozen_dtype
        wanted = torch.float32 if name in kept else TORCH_DTYPES[dtype]
        parameter.data = parameter.data.to(wanted)
    if layout.is_sharded:
        _shard(model, meta_model, layout, memory, kept=kept, compiled=compiled)
    else:
        _compute_alone(model, meta_model, layout, kept=kept, compiled=compiled)
    _allocate(model, meta_model, layout, memory)
    return model


def _shard(
    model: nn.Module,
    meta_model: MetaModel,
    layout: MemoryLayout,
    memory: MemoryTiers,
    *,
    kept: frozenset[str],
    compiled: bool,
) -> None:
    mesh = make_mesh(memory.device.device, layout)
    options = {
        "mesh": mesh,
        "mp_policy": _precision(layout),
        "offload_policy": _offload(layout, memory),
        "reshard_after_forward": not layout.keeps_gathered,
    }
    if layout.tensor_ranks > 1:
        options |= _cut(model, meta_model, layout, mesh)
    for name, in_fp32 in gathered_separately(model, kept):
        policy = {"mp_policy": MixedPrecisionPolicy()} if in_fp32 else {}
        fully_shard(model.get_submodule(name), **{**options, **policy})
    for name in meta_model.blocks:
        block = model.get_submodule(name)
        _compile(block, compiled=compiled)
        fully_shard(block, **options)
    fully_shard(model, **options)
    sum_gradients(model, mesh)
    free_reduction_buffers(model, layout, memory.device.device)


def _compute_alone(
    model: nn.Module,
    meta_model: MetaModel,
    layout: MemoryLayout,
    *,
    kept: frozenset[str],
    compiled: bool,
) -> None:
    """Prepare `model` for a single rank without FSDP2.

    The modules that FSDP2 would gather cast their inputs to the computing dtype, as FSDP2 does.
    """
    in_16_bits = [name for name, in_fp32 in gathered_separately(model, kept) if not in_fp32]
    for name in meta_model.blocks:
        _compile(model.get_submodule(name), compiled=compiled)
    if layout.precision != "fp32":
        cast = partial(_cast_inputs, TORCH_DTYPES[layout.precision])
        for name in dict.fromkeys([*in_16_bits, *meta_model.blocks, ""]):
            model.get_submodule(name).register_forward_pre_hook(cast, with_kwargs=True)


def _compile(block: nn.Module, *, compiled: bool) -> None:
    if compiled:
        # Not the module: hooks stay outside, and the parameters keep their names.
        block.forward = torch.compile(block.forward)


def _cast_inputs(
    dtype: torch.dtype, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cast(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floats else value

    found: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(cast, (arguments, keywords))
    return found


def _cut(
    model: nn.Module, meta_model: MetaModel, layout: MemoryLayout, mesh: DeviceMesh
) -> dict[str, Any]:
    """Split the layers of `model` among the tensor ranks.

    Returns additional arguments with which FSDP2 must shard the model afterwards.
    """
    cut_layers(model, layer_cuts(meta_model.model, layout.tensor_ranks), mesh[TENSOR])
    kinds = placement_types()
    every_rank = init_device_mesh(mesh.device_type, (layout.world_size,), mesh_dim_names=(SHARD,))
    among_all = kinds.ShardPlacementResult(None, kinds.FSDPMeshInfo(every_rank, shard_mesh_dim=0))

    def placement(parameter: nn.Parameter) -> Any:
        return None if isinstance(parameter, DTensor) else among_all

    return {"mesh": mesh[SHARD], "shard_placement_fn": placement}


def check_cuts(model: Any, tensor_ranks: int) -> LayerCuts:
    """Return how `tensor_ranks` tensor ranks share the layers of `model`.

    Raises:
        Unsupported, BadRequest: the errors of `layer_cuts`; or this torch does not support tensor
            ranks.
    """
    cuts = layer_cuts(model, tensor_ranks)
    if tensor_ranks > 1:
        placement_types()
    return cuts


def placement_types(package: Any = None) -> Any:
    """Return torch's module with the types that say over which ranks FSDP2 shards a parameter.

    `package` is the package that contains the module (default: FSDP2's own package).

    Raises:
        Unsupported: this torch does not have these types.
    """
    try:
        from torch.distributed.fsdp import _fully_shard

        _fsdp_common = (package or _fully_shard)._fsdp_common
        _ = _fsdp_common.ShardPlacementResult
    except (ImportError, AttributeError):
        raise Unsupported(
            f"zero.tensor_ranks: torch {torch.__version__} cannot shard the weights of one "
            "block among different ranks; upgrade torch to 2.13, or remove zero.tensor_ranks"
        ) from None
    return _fsdp_common


def _precision(layout: MemoryLayout) -> MixedPrecisionPolicy:
    if layout.precision == "fp32":
        return MixedPrecisionPolicy()
    dtype = TORCH_DTYPES[layout.precision]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def _offload(layout: MemoryLayout, memory: MemoryTiers) -> OffloadPolicy:
    if layout.params_tier != HOST:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=memory.pins)


def local_part(tensor: DTensor) -> tuple[torch.Tensor, tuple[slice, ...]]:
    """Return (this rank's memory of `tensor`, the slices of the whole tensor that this memory
    has).
    """
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    box = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    return tensor.to_local(), box


def wrap_local(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any], shape: Sequence[int]
) -> DTensor:
    """Return a DTensor of shape `shape`.

    `local` is this rank's part of it. Unlike `DTensor.from_local`, this function accepts a `local`
    in host memory although the mesh is of GPUs.
    """
    whole = torch.empty(tuple(shape), dtype=local.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), local.dtype)
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)


def _allocate(
    model: nn.Module, meta_model: MetaModel, layout: MemoryLayout, memory: MemoryTiers
) -> None:
    tier = memory.transfer if layout.params_tier == HOST else memory.device
    made: dict[nn.Parameter, nn.Parameter] = {}
    records = _records(model) if layout.is_sharded else {}
    whole = meta_model.model.named_buffers(remove_duplicate=False)
    types = {name: buffer.dtype for name, buffer in whole}
    packed = packed_buffers(model)
    for prefix, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                made[parameter] = _with_memory(parameter, tier, records.get(parameter))
            setattr(module, name, made[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            path = f"{prefix}.{name}" if prefix else name
            sort = WEIGHTS if path in packed else BUFFERS
            module._buffers[name] = memory.device.empty(buffer.shape, types[path], sort)


def _records(model: nn.Module) -> dict[nn.Parameter, Any]:
    states = (m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule))
    groups = (group for state in states for group in _groups(state))
    return {each.sharded_param: each for group in groups for each in group.fsdp_params}


def _groups(state: Any) -> Iterator[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        yield from state._fsdp_param_groups
    elif state._fsdp_param_group:  # before torch 2.12 there is one at most
        yield state._fsdp_param_group


def _with_memory(parameter: nn.Parameter, tier: MemoryTier, record: Any) -> nn.Parameter:
    if record is None:
        memory = tier.empty(parameter.shape, parameter.dtype, WEIGHTS)
        return nn.Parameter(memory, requires_grad=parameter.requires_grad)
    assert isinstance(parameter, DTensor)
    local = parameter.to_local()
    padded = tier.empty(record.padded_sharded_param_size, local.dtype, WEIGHTS)
    rows = local.shape[0] if local.numel() else 0
    padded[rows:].zero_()
    # FSDP would copy unknown memory, with as many rows as the first rank has, to torch's own
    # memory: pinned by powers of two, and not counted.
    record._sharded_param_data = padded.view(-1)
    memory = padded[:rows].view(local.shape)
    tensor = wrap_local(memory, parameter.device_mesh, parameter.placements, parameter.shape)
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def free_reduction_buffers(model: Any, layout: MemoryLayout, device: torch.device) -> None:
    """Make FSDP2 free each reduction buffer of `model` early, if gradients are copied out of these
    buffers.

    FSDP2 reduces the gradients of a block in one fp32 buffer. If ranks hold replicas (stages 0 and
    1, groups of `zero.shard_size`), FSDP2 keeps the buffers of all blocks until the end of the
    backward pass, so that no other stream gets the memory too early (torch's pull requests 140044
    and 180900). This costs nothing if the buffer itself becomes the gradient. But with master
    weights, or with parameters in host memory, the gradients are copied out of the buffer, and the
    buffers of all blocks would take 4 bytes per parameter on the device.

    So the buffer of a block is freed after the buffer of the next block was reduced. This is safe,
    because the buffer's use in the stream of the reduction is recorded (`record_stream`): torch's
    allocator does not reuse the memory before this stream has finished with it.
    """
    # Without a GPU, parameters "on the host" have the buffer itself as their gradient.
    leave = layout.has_masters or (layout.params_tier == HOST and device.type == "cuda")
    if not (layout.replicates_weights and leave):
        return
    hook = _Reduced()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(hook)


def sum_gradients(model: Any, mesh: DeviceMesh) -> None:
    """Make FSDP2 sum gradients and divide the sum, if the backend's own average would be wrong.

    Before NCCL 2.29.7, NCCL's average over one rank leaves out the last elements (NVIDIA/nccl 1950,
    torch's issue 144045). The gradients of these elements would be zero. In torch 2.8, the average
    of gloo's reduce-scatter is the sum.
    """
    if mesh.device_type != "cpu" and 1 not in mesh.shape:
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


class _Reduced:
    """A hook that FSDP2 calls with each reduction buffer, in the stream of the reduction.

    It frees the previous buffer, to which only FSDP2 still refers.
    """

    def __init__(self) -> None:
        self._last: Callable[[], torch.Tensor | None] = lambda: None

    def __call__(self, buffer: torch.Tensor) -> None:
        before = self._last()
        if before is not None:
            if before.is_cuda:
                before.record_stream(torch.cuda.current_stream(before.device))
            before.untyped_storage().resize_(0)
        self._last = weakref.ref(buffer)
