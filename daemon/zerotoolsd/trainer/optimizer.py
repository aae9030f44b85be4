"""AdamW over the shards, its state primed so that it exists before the first step."""

from __future__ import annotations

from typing import Any

import torch

from zerotools.formats.dcp.jobrecord import OptimizerGroup, OptimizerRecord
from zerotools.jobs.spec import TrainSpec

STATES = ("step", "exp_avg", "exp_avg_sq")


def make_optimizer(model: Any, train: TrainSpec) -> torch.optim.AdamW:
    """Fused AdamW; tensors of two or more dimensions decay, the others do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(train.betas[0], train.betas[1]),
        eps=train.eps,
        fused=True,
    )
    _prime(optimizer)
    return optimizer


def _prime(optimizer: torch.optim.AdamW) -> None:
    # torch makes the state in the first step; asking for it earlier takes a step with zero
    # gradients, which counts. Tensors that exist can be loaded into, and saved at step 0.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def set_learning_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """The rate of the next step, for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def named_state(model: Any, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """The optimizer's tensors as `<parameter name>.<state>`; they are live, not copies."""
    return {
        f"{name}.{state}": optimizer.state[parameter][state]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for state in STATES
    }


def describe(model: Any, optimizer: torch.optim.AdamW) -> OptimizerRecord:
    """The groups by parameter name, for the checkpoint's record."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return OptimizerRecord(
        "adamw",
        tuple(
            OptimizerGroup(
                lr=float(group["lr"]),
                weight_decay=float(group["weight_decay"]),
                betas=(float(group["betas"][0]), float(group["betas"][1])),
                eps=float(group["eps"]),
                params=tuple(names[parameter] for parameter in group["params"]),
            )
            for group in optimizer.param_groups
        ),
    )
