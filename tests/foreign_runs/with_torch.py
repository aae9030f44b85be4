"""Loops of one's own: FSDP2 and torch's DCP; accelerate with FSDP2, and on one process."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .setting import AFTER, BEFORE, CLIP, adamw, loss_of, make_model, share


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    save: Callable[[], None],
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> list[float]:
    """Take steps, `save` between them; the losses of those after it."""
    losses = []
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            save()
        loss = loss_of(model, batch)
        backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses[BEFORE:]


def _mean(losses: list[float]) -> list[float]:
    found = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(found)
    return [float(loss) for loss in found / dist.get_world_size()]


def fsdp2(checkpoint: Path) -> list[float]:
    """`fully_shard`, AdamW and `dcp.save`, of a model with tied embeddings."""
    model = make_model(tied=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model)

    def save() -> None:
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(checkpoint))

    batch = share(dist.get_rank(), dist.get_world_size())
    return _mean(train(model, optimizer, batch, save))


def accelerate_fsdp2(checkpoint: Path) -> list[float]:
    """`save_state` under FSDP2, sharded state dicts."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        state_dict_type="SHARDED_STATE_DICT",
        reshard_after_forward=True,
    )
    accelerator = Accelerator(fsdp_plugin=plugin, cpu=True)
    model = make_model()
    model, optimizer = accelerator.prepare(model, adamw(model))
    batch = share(dist.get_rank(), dist.get_world_size())
    return _mean(
        train(
            model,
            optimizer,
            batch,
            lambda: accelerator.save_state(str(checkpoint)),
            accelerator.backward,
        )
    )


def accelerate_one(checkpoint: Path) -> list[float]:
    """`save_state` of one process: model.safetensors, and optimizer.bin by number."""
    accelerator = Accelerator(cpu=True)
    model = make_model()
    model, optimizer = accelerator.prepare(model, adamw(model))
    return train(
        model,
        optimizer,
        share(0, 1),
        lambda: accelerator.save_state(str(checkpoint)),
        accelerator.backward,
    )
