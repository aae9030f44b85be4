"""FullyShardedDataParallel: DCP in accelerate's layout, and ShardedTensor per rank."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

from ..deepspeed_runs.models import Plain
from .gather import gather_named, train

CPU = torch.device("cpu")


def trained(use_orig_params: bool) -> tuple[FSDP, torch.optim.Optimizer]:
    model = Plain()
    model.layer.register_buffer("seen", torch.tensor([7, 8, 9]))
    for name in ("embed", "layer"):
        block = FSDP(getattr(model, name), use_orig_params=use_orig_params, device_id=CPU)
        setattr(model, name, block)
    sharded = FSDP(model, use_orig_params=use_orig_params, device_id=CPU)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.01)
    train(sharded, optimizer, 2)
    return sharded, optimizer


def gather_pieces(model: FSDP, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Full optimizer state by joining the flat pieces of all ranks.

    With use_orig_params and FULL_STATE_DICT, FSDP itself returns `exp_avg_sq` as `exp_avg` here.
    """
    mine = {
        name.replace("_fsdp_wrapped_module.", ""): dict(optimizer.state[parameter])
        for name, parameter in model.named_parameters()
    }
    ranks: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, mine)
    found: dict[str, dict[str, Tensor]] = {name: {} for name in mine}
    for name, roles in found.items():
        states = [state[name] for state in ranks if state[name]]
        for role in states[0]:
            values = [state[role] for state in states]
            roles[role] = torch.cat(values) if values[0].dim() else values[0]
    return found


def truth_of(model: FSDP, optimizer: torch.optim.Optimizer, orig: bool) -> dict[str, Tensor]:
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        weights = model.state_dict()
        state = {} if orig else FSDP.optim_state_dict(model, optimizer)["state"]
    if orig:
        state = gather_pieces(model, optimizer)
        for name, roles in state.items():
            shape = weights[name].shape
            state[name] = {r: v.reshape(shape) if v.dim() else v for r, v in roles.items()}
    return gather_named(weights, state, {"layer.seen"})


def save_dcp(checkpoint: Path, use_orig_params: bool) -> dict[str, Tensor]:
    """accelerate's `save_state` with SHARDED_STATE_DICT: model and optimizer directories."""
    model, optimizer = trained(use_orig_params)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        weights = {"model": model.state_dict()}
        state = {"optimizer": FSDP.optim_state_dict(model, optimizer)}
    dcp.save(weights, checkpoint_id=str(checkpoint / "pytorch_model_fsdp_0"))
    dcp.save(state, checkpoint_id=str(checkpoint / "optimizer_0"))
    return truth_of(model, optimizer, use_orig_params)


def save_orig(checkpoint: Path) -> dict[str, Tensor]:
    return save_dcp(checkpoint, use_orig_params=True)


def save_flat(checkpoint: Path) -> dict[str, Tensor]:
    return save_dcp(checkpoint, use_orig_params=False)


def save_bin(checkpoint: Path) -> dict[str, Tensor]:
    """Each rank pickles its own ShardedTensors."""
    model, optimizer = trained(use_orig_params=True)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.save(model.state_dict(), checkpoint / f"pytorch_model_rank{dist.get_rank()}.bin")
        torch.save(
            FSDP.optim_state_dict(model, optimizer),
            checkpoint / f"optimizer_rank{dist.get_rank()}.bin",
        )
    return truth_of(model, optimizer, True)
