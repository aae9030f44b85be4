"""A live GPT under Megatron-FSDP, saved as Megatron-LM's training script does for fsdp_dtensor."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import (
    preprocess_state_dict_for_uneven_dtensor,
)
from megatron.core.transformer import fsdp_dtensor_checkpoint as megatron
from megatron.core.transformer.module import Float16Module

from .cases import Case
from .live import STEPS, args_of, get_optimizer, model_of


def run(case: Case, directory, iteration) -> dict[str, torch.Tensor]:
    """Train, save into `directory`, and give the truth."""
    config, model = model_of(case)
    sharding = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        use_megatron_fsdp=True,
        data_parallel_sharding_strategy="optim_grads_params",
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )
    adapter = FullyShardedDataParallel(config, sharding, Float16Module(config, model))
    optimizer = get_optimizer(case, adapter)
    _train(optimizer)
    wrapped = adapter.module
    weights = wrapped.state_dict()
    metadata = {"distrib_optim_sharding_type": case.optimizer}
    state = optimizer.sharded_state_dict(weights, is_loading=False, metadata=metadata)
    truth = _truth(weights, state["state"])
    megatron.handle_fp8_extra_state_case(weights)
    weights, state = megatron.handle_swiglu_in_state_dict(wrapped, weights, state)
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


def _train(optimizer) -> None:
    for step in range(1, STEPS + 1):
        for group in optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                with torch.no_grad():
                    grad = parameter.detach().clone()
                    grad._local_tensor.mul_(3).add_(0.01 * step)
                parameter.grad = grad
        optimizer.optimizer.step()


def _truth(weights, state) -> dict[str, torch.Tensor]:
    """Each rank has rows of a tensor, or none: one behind another they are the whole."""
    mine = {f"{name}|param": value for name, value in weights.items() if value is not None}
    for name, kept in state.items():
        mine |= {f"{name}|{role}": kept[role] for role in ("exp_avg", "exp_avg_sq")}
    shapes = {name: value.shape for name, value in mine.items()}
    every = [None] * dist.get_world_size()
    rows = {name: value.to_local().detach().clone() for name, value in mine.items()}
    dist.all_gather_object(every, rows)
    found = {}
    for name, shape in shapes.items():
        whole = torch.cat([rank[name] for rank in every if name in rank])
        assert whole.shape == shape, name
        found[name.replace("module.", "")] = whole.contiguous()
    return dict(sorted(found.items()))
