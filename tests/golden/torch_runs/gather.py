"""The truth of a live model: whole tensors, gathered by torch itself."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def whole(value: Tensor) -> Tensor:
    """The full tensor on every rank; collective for a DTensor."""
    full = value.full_tensor() if isinstance(value, DTensor) else value
    return full.detach().clone().contiguous()


def gather_live(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """`<fqn>|<role>` of replicated and DTensor models; tied names appear once."""
    found: dict[str, Tensor] = {}
    saved = model.state_dict()
    for name, parameter in model.named_parameters():
        found[f"{name}|param"] = whole(parameter)
        for role, value in (optimizer.state[parameter] if optimizer else {}).items():
            found[f"{name}|{role}"] = whole(value)
    for name, buffer in model.named_buffers():
        if name in saved:
            found[f"{name}|buffer"] = whole(buffer)
    return dict(sorted(found.items()))


def gather_named(
    weights: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Mapping[str, Any]],
    buffers: set[str],
) -> dict[str, Tensor]:
    """`<fqn>|<role>` of full state dicts keyed by name, as FSDP1 gathers them on rank 0."""
    found = {f"{n}|{'buffer' if n in buffers else 'param'}": whole(t) for n, t in weights.items()}
    for name, state in optimizer_state.items():
        found |= {f"{name}|{role}": whole(torch.as_tensor(v)) for role, v in state.items()}
    return dict(sorted(found.items()))


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """Steps with the exact gradients of `tests.golden.deepspeed_runs.models`."""
    for step in range(1, steps + 1):
        model(step, dist.get_rank() if dist.is_initialized() else 0).backward()
        optimizer.step()
        optimizer.zero_grad()
