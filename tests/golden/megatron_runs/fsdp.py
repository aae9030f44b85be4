"""A live GPT under Megatron-FSDP, saved as Megatron-LM's training script does for fsdp_dtensor."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp import mcore_fsdp_adapter
from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import (
    preprocess_state_dict_for_uneven_dtensor,
)
from megatron.core.transformer import fsdp_dtensor_checkpoint as megatron
from megatron.core.transformer.module import Float16Module

from .cases import Case
from .live import STEPS, args_of, cut_rank, get_optimizer, global_name, model_of
from .truth import assembled

mcore_fsdp_adapter.TELinear = ()  # Transformer Engine's, which is not installed
_TORCH_ALONE = ("amsgrad", "foreach", "maximize", "capturable", "differentiable", "fused")
"""Options of torch's Adam which Transformer Engine's, that takes its place on a GPU, has not."""


def run(case: Case, directory, iteration) -> dict[str, torch.Tensor]:
    """Train, save into `directory`, and give the truth."""
    config, model = model_of(case)
    if case.grouped:
        _group(model)
    facts = {name: _facts(case, model, name, each) for name, each in model.named_parameters()}
    sharding = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        use_megatron_fsdp=True,
        data_parallel_sharding_strategy="optim_grads_params",
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )
    adapter = mcore_fsdp_adapter.FullyShardedDataParallel(
        config, sharding, Float16Module(config, model)
    )
    optimizer = get_optimizer(case, adapter)
    _train(optimizer)
    wrapped = adapter.module
    weights = wrapped.state_dict()
    metadata = {"distrib_optim_sharding_type": case.optimizer}
    state = optimizer.sharded_state_dict(weights, is_loading=False, metadata=metadata)
    for options in state["param_to_group_meta"].values():
        for name in _TORCH_ALONE:
            options.pop(name, None)
    truth = _truth(facts, adapter, optimizer.optimizer)
    megatron.handle_fp8_extra_state_case(weights)
    weights, state = megatron.handle_swiglu_in_state_dict(wrapped, weights, state)
    if "num_moe_experts" in case.model:
        weights = megatron.handle_experts_in_state_dict(weights, case.model["num_moe_experts"])
    saved = {
        "args": args_of(case),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": weights,
        "optimizer": state,
    }
    preprocess_state_dict_for_uneven_dtensor(saved)
    dcp.save(saved, checkpoint_id=directory)
    return truth


def _group(model) -> None:
    """Experts as parameters of two modules, as in Transformer Engine's `GroupedLinear`, which
    computes on a GPU only; here nothing is computed."""
    for layer in model.decoder.layers:
        experts, made = layer.mlp.experts.local_experts, torch.nn.Module()
        for name in ("linear_fc1", "linear_fc2"):
            part = torch.nn.Module()
            for number, expert in enumerate(experts):
                part.register_parameter(f"weight{number}", getattr(expert, name).weight)
            made.add_module(name, part)
        layer.mlp.experts = made


def _facts(case: Case, model, name, parameter):
    """(name on one rank, piece, axis of the pieces, shape of this piece) before it is sharded."""
    at = cut_rank(name, parameter)
    axis = getattr(parameter, "partition_dim", 0) if at is not None else 0
    return global_name(case, model, name), at, axis, parameter.shape


def _train(optimizer) -> None:
    for step in range(1, STEPS + 1):
        for group in optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                with torch.no_grad():
                    grad = parameter.detach().clone()
                    grad._local_tensor.mul_(3).add_(0.01 * step)
                parameter.grad = grad
        optimizer.optimizer.step()


def _truth(facts, adapter, optimizer) -> dict[str, torch.Tensor]:
    """Of each parameter a rank has a range of its piece flattened, `megatron_fsdp_slice`."""
    mine = []
    for name, parameter in adapter.named_parameters():
        known = facts[name.replace("module.", "")]
        state = optimizer.state[parameter]
        begin = parameter.megatron_fsdp_slice.start
        roles = {"param": parameter, **{role: state[role] for role in ("exp_avg", "exp_avg_sq")}}
        for role, value in roles.items():
            flat = value.to_local().detach().reshape(-1).clone()
            mine.append((*known, role, begin, flat))
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return assembled([piece for each in every for piece in each])
