"""The optimizer's numbers are torch's own, though its state is there before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zerotools.jobs.jobfile_tables.train import TrainSpec

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch
RATES = (0.1, 0.05, 0.02)


def gradients(model: torch.nn.Module, step: int) -> None:
    """Gradients that follow from the step."""
    import torch

    numbers = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=numbers)


def trained(train: TrainSpec) -> tuple[Any, Any]:
    """A model and the optimizer that took three steps."""
    import torch

    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch.optimizer import make_optimizer
    from zerotoolsd.trainer.engine_torch.reduce_and_update import InPlaceUpdate

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    device = torch.device("cpu")
    place = make_memory(device).device
    path = InPlaceUpdate(dict(model.named_parameters()), device)
    optimizer = make_optimizer(path, train, place, frozenset({"weight"}))
    for step, rate in enumerate(RATES):
        gradients(model, step)
        optimizer.step(rate, norm=1.0, max_norm=0.0)
    return model, optimizer


def by_torch(kind: str, **options: Any) -> Any:
    """The same steps by torch's optimizer, made and used in the usual way."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    groups = [
        {"params": [model.weight], "weight_decay": 0.1},
        {"params": [model.bias], "weight_decay": 0.0},
    ]
    optimizer = getattr(torch.optim, kind)(groups, lr=1.0, **options)
    for step, rate in enumerate(RATES):
        for group in optimizer.param_groups:
            group["lr"] = rate
        gradients(model, step)
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("changes", "kind", "options", "roles"),
    [
        ({}, "AdamW", {"betas": (0.9, 0.95), "fused": True}, ["step", "exp_avg", "exp_avg_sq"]),
        ({"optimizer": "sgd", "momentum": 0.8}, "SGD", {"momentum": 0.8}, ["momentum_buffer"]),
        ({"optimizer": "sgd", "momentum": 0.0}, "SGD", {}, []),
    ],
)
def test_steps_are_those_of_torch(
    changes: dict[str, Any], kind: str, options: dict[str, Any], roles: list[str]
) -> None:
    model, optimizer = trained(TrainSpec(steps=3, batch_size=1, **changes))
    wanted = by_torch(kind, **options)
    assert model.weight.tolist() == wanted.weight.tolist()
    assert model.bias.tolist() == wanted.bias.tolist()
    assert list(optimizer.state()) == [f"{name}.{r}" for name in ("weight", "bias") for r in roles]
    record = optimizer.describe()
    assert record.name == kind.lower()
    assert [group.params for group in record.groups] == [("weight",), ("bias",)]
    shown = {name: value for name, value in options.items() if name != "fused"}
    assert record.groups[0].options().items() >= {"lr": 0.02, "weight_decay": 0.1, **shown}.items()
