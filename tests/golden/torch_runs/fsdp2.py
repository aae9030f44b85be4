"""`fully_shard`: DCP in three layouts, sharded safetensors, DTensors per rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from ..deepspeed_runs.models import Model, Pair, Plain, initial
from .gather import gather_live, train

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def sharded(kind: Callable[[], Model] = Plain, dtype: torch.dtype = torch.float32) -> Model:
    model = kind()
    model.to(dtype)
    model.norm.register_buffer("seen", torch.tensor([7, 8, 9]))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    for block in model.children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def trained(dtype: torch.dtype = torch.float32) -> tuple[Model, torch.optim.AdamW]:
    model = sharded(dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    train(model, optimizer, 2)
    return model, optimizer


def save_accelerate(checkpoint: Path) -> dict[str, Tensor]:
    """accelerate's FSDP2 directories: every key below `model.` or `optimizer.`."""
    model, optimizer = trained()
    dcp.save(
        {"model": get_model_state_dict(model)},
        checkpoint_id=str(checkpoint / "pytorch_model_fsdp_0"),
    )
    dcp.save(
        {"optimizer": get_optimizer_state_dict(model, optimizer)},
        checkpoint_id=str(checkpoint / "optimizer_0"),
    )
    return gather_live(model, optimizer)


def save_torchtitan(checkpoint: Path) -> dict[str, Tensor]:
    """`step-N` directories with bare names and a flattened optimizer; the truth is of step-4."""
    model = sharded(Pair)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in (2, 4):
        train(model, optimizer, 2)
        state: dict[str, Any] = dict(get_model_state_dict(model))
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=FLAT)
        state["lr_scheduler"] = {"last_epoch": step}
        state["train_state"] = {"step": torch.tensor(step), "ntokens_seen": torch.tensor(step * 64)}
        state["dataloader"] = {f"dp_rank_{dist.get_rank()}": b"position"}
        dcp.save(state, checkpoint_id=str(checkpoint / f"step-{step}"))
    return gather_live(model, optimizer)


def save_hf(checkpoint: Path) -> dict[str, Tensor]:
    """Safetensors per rank with DCP_SHARDING_INFO, no index."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter  # since torch 2.7

    model, _ = trained(dtype=torch.bfloat16)
    writer = HuggingFaceStorageWriter(path=str(checkpoint), save_distributed=True)
    dcp.save(get_model_state_dict(model), storage_writer=writer)
    return gather_live(model, None)


def save_verl(checkpoint: Path) -> dict[str, Tensor]:
    """verl's layout: each rank pickles its DTensors; what the ranks are is in the file name."""
    model, optimizer = trained()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.save(model.state_dict(), checkpoint / f"model_world_size_{size}_rank_{rank}.pt")
    torch.save(optimizer.state_dict(), checkpoint / f"optim_world_size_{size}_rank_{rank}.pt")
    torch.save(
        {"lr_scheduler": {"last_epoch": 2}, "rng": {"cpu": torch.get_rng_state()[:16]}},
        checkpoint / f"extra_state_world_size_{size}_rank_{rank}.pt",
    )
    if rank == 0:
        facts = {"FSDP_version": 2, "world_size": size}
        (checkpoint / "fsdp_config.json").write_text(json.dumps(facts))
    return gather_live(model, optimizer)


def save_two_dimensional(checkpoint: Path) -> dict[str, Tensor]:
    """Tensor parallel within, data parallel without: chunks cut in both dimensions."""
    model = nn.Sequential(nn.Linear(9, 14, bias=False), nn.Linear(14, 5))
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(initial(parameter.shape, seed))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(initial((3, 9), dist.get_rank() // 2)).sum().backward()
    optimizer.step()
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer, options=FLAT),
    }
    dcp.save(state, checkpoint_id=str(checkpoint))
    return gather_live(model, optimizer)
