"""Loops of one's own: FSDP2 and torch's DCP, accelerate over DDP."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .setting import AFTER, BEFORE, CLIP, TIED, adamw, loss_of, make_model, share


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


def fsdp2(checkpoint: Path, *, as_accelerate: bool = False) -> list[float]:
    """`fully_shard`, AdamW and `dcp.save`: of a model with tied embeddings in one directory, or in
    the two that accelerate's `save_state` makes under FSDP2 (which it does on GPUs alone)."""
    model = make_model(**({} if as_accelerate else TIED))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model)

    def save() -> None:
        weights, state = get_state_dict(model, optimizer)
        if as_accelerate:
            dcp.save({"model": weights}, checkpoint_id=str(checkpoint / "pytorch_model_fsdp_0"))
            dcp.save({"optimizer": state}, checkpoint_id=str(checkpoint / "optimizer_0"))
        else:
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(checkpoint))

    batch = share(dist.get_rank(), dist.get_world_size())
    return _mean(train(model, optimizer, batch, save))


def accelerate_ddp(checkpoint: Path) -> list[float]:
    """`save_state` of processes that each have the model: model.safetensors, and optimizer.bin by
    number."""
    accelerator = Accelerator(cpu=True)
    model = make_model()
    model, optimizer = accelerator.prepare(model, adamw(model))
    batch = share(accelerator.process_index, accelerator.num_processes)

    def save() -> None:
        accelerator.save_state(str(checkpoint))

    return _mean(train(model, optimizer, batch, save, accelerator.backward))
