"""Saves as Megatron-LM's `training/checkpointing.py` calls Megatron-Core to save."""

import random
from inspect import signature

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from .cases import Case
from .live import args_of


def save(case: Case, wrapped, optimizer, run, iteration) -> None:
    directory = run / f"iter_{iteration:07d}"
    directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    (_rank_files if case.format == "torch" else _torch_dist)(
        case, wrapped, optimizer, directory, iteration
    )


def _random():
    return {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }


def _common(case: Case, iteration: int):
    return {
        "args": args_of(case),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "num_floating_point_operations_so_far": 0,
        "opt_param_scheduler": {
            "max_lr": 0.01,
            "lr_warmup_steps": 0,
            "num_steps": iteration * 8,
            "lr_decay_style": "constant",
            "lr_decay_steps": 800,
            "min_lr": 0.001,
            "start_wd": 0.1,
            "end_wd": 0.1,
            "wd_incr_style": "constant",
            "wd_incr_steps": 100,
        },
    }


def _torch_dist(case: Case, wrapped, optimizer, directory, iteration) -> None:
    metadata = dict(case.metadata)
    if case.optimizer not in (None, "plain"):
        metadata["distrib_optim_sharding_type"] = case.optimizer
    model = wrapped.module.sharded_state_dict(metadata=metadata)
    state = {**_common(case, iteration), "model": model}
    if optimizer is not None:
        state["optimizer"] = _optimizer(case, optimizer, model, metadata)
    pp, tp = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    state["rng_state"] = ShardedObject(
        "rng_state",
        [_random()],
        (case.pp, case.tp),
        (pp, tp),
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )
    strategy = get_default_save_sharded_strategy("torch_dist", 1)
    if case.parallel_save:
        strategy = FullyParallelSaveStrategyWrapper(
            strategy, parallel_state.get_data_parallel_group(with_context_parallel=True), True
        )
    more = {}
    if "content_metadata" in dist_checkpointing.save.__code__.co_varnames:
        more["content_metadata"] = metadata
    dist_checkpointing.save(state, str(directory), strategy, **more)


def _optimizer(case: Case, optimizer, model, metadata):
    if case.optimizer == "plain":
        more = {}
    elif "metadata" in signature(DistributedOptimizer.sharded_state_dict).parameters:
        more = {"metadata": metadata}
    else:
        more = {"sharding_type": case.optimizer}
    return optimizer.sharded_state_dict(model, is_loading=False, **more)


def _rank_files(case: Case, wrapped, optimizer, directory, iteration) -> None:
    tp = parallel_state.get_tensor_model_parallel_rank()
    name = f"mp_rank_{tp:02d}"
    if case.pp > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if case.ep > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    rank = directory / name
    rank.mkdir(exist_ok=True)
    is_distributed = case.optimizer not in (None, "plain")
    if is_distributed:
        optimizer.save_parameter_state(str(rank / "distrib_optim.pt"))
    writes = parallel_state.get_data_parallel_rank() == 0
    if case.ep > 1:
        writes = parallel_state.get_expert_data_parallel_rank() == 0
    if not writes:
        return
    state = {**_common(case, iteration), "model": wrapped.module.state_dict_for_save_checkpoint()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    state["rng_state"] = [_random()]
    torch.save(state, rank / "model_optim_rng.pt")
